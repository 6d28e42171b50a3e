"""One frame of ``prefixpilot top``: what ``/stats`` and ``/metrics`` of a proxy say, as lines of text. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

UNKNOWN: Final = "-"
MIN_WIDTH: Final = 40
_SAMPLE: Final = re.compile(r"^(prefixpilot_\w+) ([0-9.eE+-]+|NaN)$", re.MULTILINE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a proxy showed at one moment.

    Attributes:
        at: monotonic seconds.
        stats: the JSON of ``/stats``.
        samples: of ``/metrics``, those without labels.
    """

    at: float
    stats: Mapping[str, Any]
    samples: Mapping[str, float] = field(default_factory=dict)

    def number(self, *path: str) -> float | None:
        """A number in ``stats``; ``None`` if it is not there, or unknown."""
        value: Any = self.stats
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def table(self, *path: str) -> Mapping[str, Any]:
        """An object in ``stats``; empty if it is not there."""
        value: Any = self.stats
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}


def samples_of(text: str) -> dict[str, float]:
    """The samples without labels of an exposition.

    >>> samples_of("# HELP prefixpilot_in_flight x\\nprefixpilot_in_flight 2.0\\n")
    {'prefixpilot_in_flight': 2.0}
    """
    return {name: float(value) for name, value in _SAMPLE.findall(text)}


def frame(url: str, now: Reading, before: Reading | None = None, *, width: int = 100) -> str:
    """All lines, none longer than ``width``; ``before`` is the reading of the frame before, for what is new since."""
    cache = now.table("engine_cache")
    lines = [
        *_head(url, now),
        *_why(now, max(width, MIN_WIDTH)),
        *_requests(now, before),
        *_hits(now, before),
        *_predictions(cache),
        *_events(cache),
        "",
        *_engines(now, before),
        *_routes(cache),
    ]
    return "\n".join(_cut(line, max(width, MIN_WIDTH)) for line in lines)


def _head(url: str, now: Reading) -> list[str]:
    cache = now.table("engine_cache")
    state, provider = cache.get("state", "UNKNOWN"), cache.get("provider")
    of = f"   of {provider}, by its documents and counts" if provider else ""
    return [f"prefixpilot {url}   up {_duration(now.number('uptime_s'))}   cache {state}{of}"]


def _why(now: Reading, width: int) -> list[str]:
    """Why the cache is not known better: in full, since what helps stands at its end."""
    reason = str(now.table("engine_cache").get("reason") or "")
    return [*textwrap.wrap(f"because {reason}", width, break_on_hyphens=False), ""] if reason else [""]


def _requests(now: Reading, before: Reading | None) -> list[str]:
    outcomes = {name: int(count) for name, count in now.table("requests").items() if count}
    total = sum(outcomes.values())
    rate = ""
    if before is not None and now.at > before.at:
        new = total - sum(int(count) for count in before.table("requests").values())
        rate = f"   {max(new, 0) / (now.at - before.at):.1f}/s"
    of = ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items(), key=lambda item: -item[1]))
    lines = [_row("requests", f"{total:,}{rate}   in flight {_count(now.number('sizes', 'in_flight'))}   {of}")]
    failed = {step: int(count) for step, count in now.table("fail_opens").items() if count}
    if failed:
        lines.append(_row("fail-opens", _listed(failed)))
    seconds, count = (now.samples.get(f"prefixpilot_planning_seconds_{part}") for part in ("sum", "count"))
    if seconds is not None and count:
        lines.append(_row("added", f"{1000 * seconds / count:.2f} ms a request on average, holding included"))
    return lines


def _hits(now: Reading, before: Reading | None) -> list[str]:
    known = _count(now.number("cache", "answers_known"))
    unknown = _count(now.number("cache", "answers_unknown"))
    rate = _percent(now.number("cache", "hit_rate"))
    lines = [_row("hit rate", f"{rate}   by the engine's count of {known} answers; {unknown} did not say")]
    if before is not None:
        cached, prompt = (_since(now, before, name) for name in ("cached_tokens", "prompt_tokens"))
        if prompt and cached is not None:
            lines[0] += f"   now {_percent(cached / prompt)}"
    saved = _count(now.number("cache", "cached_tokens"))
    replaced = (now.number("cache", "replaced_tokens") or 0) + (now.number("treated", "saved_tokens") or 0)
    text = f"{saved} tokens reused by the engine; {int(replaced):,} not sent twice"
    return [*lines, _row("saved", f"{text}; {_count(now.number('cache', 'annotation_tokens'))} spent on annotations")]


def _since(now: Reading, before: Reading, name: str) -> float | None:
    new, old = now.number("cache", name), before.number("cache", name)
    return None if new is None else new - (old or 0)


def _predictions(shown: Mapping[str, Any]) -> list[str]:
    lines = []
    for basis, sums in sorted(_tables(shown.get("predictions"))):
        verdicts = {name: int(count) for name, count in _tables_of_numbers(sums.get("verdicts"))}
        compared = sum(verdicts.values())
        if not compared:
            continue
        parts = ", ".join(f"{name.replace('_', ' ')} {_percent(n / compared)}" for name, n in verdicts.items())
        tokens = f"predicted {_count(sums.get('predicted_tokens'))}, reported {_count(sums.get('reported_tokens'))}"
        lines.append(_row("predicted", f"by {basis}: {compared:,} compared: {parts}   {tokens} tokens"))
    if not lines:
        lines = [_row("predicted", "nothing compared yet")]
    causes = {name: int(n) for name, n in _tables_of_numbers(shown.get("causes")) if n}
    return [*lines, _row("causes", _listed(causes) or "none")]


def _events(shown: Mapping[str, Any]) -> list[str]:
    sources = _objects(shown.get("sources"))
    if not sources:
        return [_row("events", "none")]
    by: dict[str, int] = {}
    for source in sources:
        by[str(source.get("continuity"))] = by.get(str(source.get("continuity")), 0) + 1
    lost, batches = (sum(int(source.get(name) or 0) for source in sources) for name in ("lost", "batches"))
    held = f"{_count(shown.get('pages'))} pages, {_count(shown.get('contexts'))} contexts"
    return [_row("events", f"{_listed(by)}   {batches:,} batches, {lost:,} lost   {held}")]


def _engines(now: Reading, before: Reading | None) -> list[str]:
    """Of several behind one proxy: each by itself, and how it stands."""
    engines, earlier = _by_number(now), {} if before is None else _by_number(before)
    rows: list[tuple[str, ...]] = [("engine", "requests", "in flight", "to compute", "hit rate", "now", "")]
    for number, engine in engines.items():
        counts = (_count(engine.get(name)) for name in ("requests", "in_flight", "prefill_tokens"))
        name = f"{number} {engine.get('url', UNKNOWN)}"
        since = _percent(_hit_rate_since(engine, earlier.get(number)))
        rows.append((name, *counts, _percent(engine.get("hit_rate")), since, _standing(engine)))
    return [*_columns(rows), ""] if engines else []


def _by_number(reading: Reading) -> dict[int, Mapping[str, Any]]:
    return dict(enumerate(_objects(reading.stats.get("engines"))))


def _hit_rate_since(engine: Mapping[str, Any], before: Mapping[str, Any] | None) -> float | None:
    if before is None:
        return None
    prompt, cached = ((engine.get(name) or 0) - (before.get(name) or 0) for name in ("prompt_tokens", "cached_tokens"))
    return cached / prompt if prompt > 0 else None


def _standing(engine: Mapping[str, Any]) -> str:
    if engine.get("drained"):
        return "drained"
    return "" if engine.get("fit") else "out"


def _routes(shown: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("route", "requests", "hit rate", "predicted", "reported", "exact", "causes")]
    for route in _objects(shown.get("routes")):
        compared, verdicts = route.get("compared") or 0, dict(_tables_of_numbers(route.get("verdicts")))
        name = " ".join(str(route.get(part) or UNKNOWN) for part in ("tenant", "api", "model"))
        exact = _percent(verdicts.get("exact", 0) / compared) if compared else UNKNOWN
        tokens = (_count(route.get(name)) for name in ("predicted_tokens", "reported_tokens"))
        causes = _listed(dict(_tables_of_numbers(route.get("causes")))) or UNKNOWN
        rows.append((name, _count(route.get("requests")), _percent(route.get("hit_rate")), *tokens, exact, causes))
    return _columns(rows) if len(rows) > 1 else ["no route was followed yet (see cache.events and cache.token_ids)"]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _tables(value: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    items = value.items() if isinstance(value, Mapping) else ()
    return ((str(name), table) for name, table in items if isinstance(table, Mapping))


def _tables_of_numbers(value: Any) -> Iterable[tuple[str, float]]:
    items = value.items() if isinstance(value, Mapping) else ()
    return ((str(name), number) for name, number in items if isinstance(number, int | float))


def _listed(counts: Mapping[str, Any]) -> str:
    in_order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{str(name).replace('_', ' ')} {count:,}" for name, count in in_order)


def _row(name: str, text: str) -> str:
    return f"{name:<10} {text}".rstrip()


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{int(value):,}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _cut(line: str, width: int) -> str:
    """Names of models come from clients: no control character of theirs reaches the terminal."""
    line = _CONTROL.sub("?", line)
    return line if len(line) <= width else line[: width - 1] + "\u2026"
