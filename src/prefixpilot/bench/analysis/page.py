"""The analysis as one HTML page: no script, nothing loaded, light and dark, for a phone too."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Final

from prefixpilot.bench.analysis.fronts import Finding
from prefixpilot.bench.analysis.report import Analysis, ArmResult
from prefixpilot.bench.analysis.unproved import Unproved
from prefixpilot.errors import ConfigError

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 480, 220, 42, 26
_NAMES: Final = {
    "arrival": "as they come",
    "order": "ordered",
    "order+dedupe": "ordered, repeats as references",
    "order+dedupe+rules": "… and rules for volatile text",
    "order+dedupe+schedule": "… and scheduled as one batch",
    "order+dedupe+rules+schedule": "… and scheduled as one batch",
}
"""An arm has what the one above it has, too."""
_SCHEDULED: Final = "+schedule"


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What the page says beside the analysis.

    Attributes:
        prefill_rate: of the engine, in tokens a second: makes the expected time to first token.
        price: of a million uncached input tokens, in any currency; ``None`` shows no cost.
        show_text: examples of what changes, in which words of the log stand.
    """

    prefill_rate: float = 5_000.0
    price: float | None = None
    show_text: bool = True

    def __post_init__(self) -> None:
        if not self.prefill_rate > 0:
            raise ConfigError("prefill_rate", f"is {self.prefill_rate!r}", "use a number above 0")
        if self.price is not None and not self.price > 0:
            raise ConfigError("price", f"is {self.price!r}", "use a number above 0, or leave it out")


def render_page(analysis: Analysis, options: PageOptions | None = None) -> str:
    """The page. Everything of the log in it is escaped."""
    options = options or PageOptions()
    data = pkgutil.get_data(__package__, "page.html")
    if data is None:
        raise ConfigError("page.html", "is not in the package", "install prefixpilot again")
    return Template(data.decode("utf-8")).substitute(
        log=escape(analysis.log),
        read=_read(analysis),
        lead=_lead(analysis),
        bars="".join(_bar(i, arm) for i, arm in enumerate(analysis.arms)),
        cache=_cache(analysis),
        curve=_curve(analysis.arms),
        legend="".join(f"<span>{_dot(i)}{_name(arm)}</span>" for i, arm in enumerate(analysis.arms)),
        table=_table(analysis, options),
        notes=_notes(analysis, options),
        documents=_documents(analysis),
        findings=_findings(analysis.findings, options),
        bad=_bad(analysis),
        footer="Made by prefixpilot analyze. No engine was asked; lengths are estimated, one token for four bytes.",
    )


def _name(arm: ArmResult) -> str:
    return _NAMES[arm.name]


def _read(analysis: Analysis) -> str:
    apis = ", ".join(f"{count:,} {escape(name)}" for name, count in analysis.apis)
    models = ", ".join("no model named" if name == "None" else escape(name) for name, _ in analysis.models)
    text = f"{analysis.requests:,} requests ({apis}) to {models}, in {_count(analysis.conversations, 'conversation')}; "
    text += f"{analysis.bytes / 1e6:,.1f} MB."
    if analysis.bad_lines:
        text += f" {_count(analysis.bad_lines, 'line')} held no request."
    if analysis.refused:
        text += f" {_count(analysis.refused, 'request')} had context_blocks that cannot be used, and are left out."
    return text


def _lead(analysis: Analysis) -> str:
    came, best = analysis.arms[0], analysis.best
    text = f"As they come, your requests reuse {came.hit_rate:.0%} of their prompt tokens."
    if best.prefilled_tokens >= came.prefilled_tokens:
        return f"{text} PrefixPilot would not raise that: see below what is in the way, if there is anything to share."
    fewer = 1 - best.prefilled_tokens / came.prefilled_tokens
    return f"{text} Through PrefixPilot it is {best.hit_rate:.0%}: the engine computes {fewer:.0%} fewer tokens."


def _bar(index: int, arm: ArmResult) -> str:
    fill = f'<div class="fill" style="width:{arm.hit_rate:.2%};background:var(--a{index % 5})"></div>'
    return (
        f'<div class="bar"><div class="name"><span>{_name(arm)}</span><b>{arm.hit_rate:.1%}</b></div>'
        f'<div class="track">{fill}</div></div>'
    )


def _cache(analysis: Analysis) -> str:
    size = "without a bound" if analysis.cache_tokens is None else f"of {analysis.cache_tokens:,} tokens"
    return f"A cache {size}, least recently used goes first, empty at the beginning."


def _curve(arms: Sequence[ArmResult]) -> str:
    """Share of the prompt tokens so far that was cached, over the requests."""
    last = max((arm.curve[-1].requests for arm in arms if arm.curve), default=1)
    top = max((p.cached / p.tokens for arm in arms for p in arm.curve if p.tokens), default=0.0)
    top = min(1.0, max(0.1, -(-top * 10 // 1) / 10))

    def x(requests: int) -> float:
        return _LEFT + (_WIDTH - _LEFT) * requests / last

    def y(share: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - share / top) + 6

    parts = []
    for share in (0.0, top / 2, top):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="var(--line)"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for requests, anchor in ((0, "start"), (last, "end")):
        parts.append(f'<text x="{x(requests):.1f}" y="{_HEIGHT}" text-anchor="{anchor}">{requests:,}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT}" text-anchor="middle">requests</text>')
    for index, arm in enumerate(arms):
        line = " ".join(f"{x(p.requests):.1f},{y(p.cached / p.tokens):.1f}" for p in arm.curve if p.tokens)
        dash = ' stroke-dasharray="6 4"' if arm.name.endswith(_SCHEDULED) else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="var(--a{index % 5})" stroke-width="2"{dash}/>')
    title = "<title>Share of prompt tokens cached so far</title>"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{title}{"".join(parts)}</svg>'


def _table(analysis: Analysis, options: PageOptions) -> str:
    billed = all(arm.billed_tokens is not None for arm in analysis.arms)
    heads = ["", "prompt tokens", "cached", "computed", "TTFT median", "TTFT p95"]
    heads += ["billed as"] if billed else []
    heads += ["cost"] if billed and options.price is not None else []
    rows = []
    for arm in analysis.arms:
        cells = [_name(arm), f"{arm.prompt_tokens:,}", f"{arm.cached_tokens:,}", f"{arm.prefilled_tokens:,}"]
        cells += [f"{n / options.prefill_rate:.2f} s" for n in (arm.median_prefilled, arm.p95_prefilled)]
        if billed and arm.billed_tokens is not None:
            cells.append(f"{arm.billed_tokens:,.0f}")
            cells += [f"{arm.billed_tokens * options.price / 1e6:,.2f}"] if options.price is not None else []
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _notes(analysis: Analysis, options: PageOptions) -> str:
    text = f"TTFT is what a request has to wait for its own computed tokens at {options.prefill_rate:,.0f} a second."
    if all(arm.billed_tokens is not None for arm in analysis.arms):
        text += (
            " Billed as: in uncached input tokens, by the provider's prices of cached tokens and of what is written."
        )
    if any(arm.name.endswith(_SCHEDULED) for arm in analysis.arms):
        text += " Only what may run as a batch can be sent in a schedule."
    return f'<p class="soft">{text}</p>'


def _documents(analysis: Analysis) -> str:
    return _found(analysis) + "".join(map(_unproved, analysis.unproved))


def _unproved(unproved: Unproved) -> str:
    return (
        f"<p>Edges not proved: {unproved.texts:,} texts, first in line {unproved.line:,}, have the words of the format "
        f"<code>{escape(unproved.format)}</code>, but nothing shows where its documents begin and end, so that they "
        "stay as they are. Write a line over each document, or send them as <code>context_blocks</code>.</p>"
    )


def _found(analysis: Analysis) -> str:
    blocks = analysis.blocks
    if not blocks.blocks:
        return (
            "<p>No documents were found in the newest messages. If your prompts hold some, write them in one of the "
            "formats that are known, or send them as <code>context_blocks</code>.</p>"
        )
    found = f"{_count(blocks.blocks, 'document')} in {_count(blocks.requests, 'request')}, {blocks.tokens:,} tokens"
    again = f"{blocks.repeated_tokens:,} ({blocks.repeated_tokens / max(1, blocks.tokens):.0%})"
    text = f"<p>{found}; of these {again} an earlier request had too."
    if blocks.bound_tokens is not None:
        text += f" No order and no schedule can reuse more than {blocks.bound_tokens:,} of them."
    text += f" {_count(analysis.touched, 'request')} would be sent otherwise than they came"
    if analysis.replaced:
        text += f", with {_count(analysis.replaced, 'reference')} to what stands above"
    return f"{text}.</p>"


def _findings(findings: Sequence[Finding], options: PageOptions) -> str:
    if not findings:
        return (
            "<p>Nothing was found: tools and system text stay from request to request, are too different to be of one "
            "application, or are not there.</p>"
        )
    return "".join([_finding(finding, options) for finding in findings])


def _finding(finding: Finding, options: PageOptions) -> str:
    example = finding.example
    text = (
        f'<div class="card"><h3>{escape(finding.cause)}: {_count(finding.requests, "request")}, '
        f"{finding.lost_tokens:,} tokens behind it computed anew</h3>"
        f"<p>First in line {example.line}, <code>{escape(example.where)}</code> at {example.offset:,}. "
        f"What helps: <code>{escape(finding.remedy)}</code></p>"
    )
    if options.show_text and (example.before or example.after):
        text += (
            f"<p>One request, and the next:</p><pre>{escape(example.before)}</pre><pre>{escape(example.after)}</pre>"
        )
    return text + "</div>"


def _bad(analysis: Analysis) -> str:
    if not analysis.bad_lines:
        return ""
    lines = "".join(f"<li>line {bad.number} {escape(bad.reason)}</li>" for bad in analysis.bad_examples)
    more = analysis.bad_lines - len(analysis.bad_examples)
    rest = f"<p>and {more:,} more</p>" if more else ""
    return f"<h2>Lines that held no request</h2><ul>{lines}</ul>{rest}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _dot(index: int) -> str:
    return f'<span class="dot" style="background:var(--a{index % 5})"></span>'
