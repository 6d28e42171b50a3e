"""What stands before the conversation (tools, system text), and where it changes from one request to the next.

Everything behind a change there is computed anew, whatever the documents do. Each front is compared with the recent
ones of its model; the one with which it has most lines in common is taken for the same application's.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from prefixpilot.apis.base import Prompt
from prefixpilot.bench.analysis.tokens import text_tokens
from prefixpilot.volatile.divergence import Cause, Divergence, common_prefix, excerpt, first_divergence

RECENT: Final = 8
"""Fronts of one model that a new one is compared with."""
_MODELS: Final = 256
_LEAST_ALIKE: Final = 0.5
"""A front of which each other one has less is another application's."""

REMEDIES: Final[dict[str, str]] = {
    "clock": "--volatile-clock round (or move)",
    "ids": "--volatile-ids",
    "memory": "--volatile-memory",
    "billing-header": "--volatile-billing-header",
    "tool-order": "--volatile-tool-order",
    "date": "no rule: it changes once a day",
    "tools": "no rule: send the same tools to every request",
    "order": "no rule: write these lines in a fixed order",
    "whitespace": "no rule: write the same white space",
    "shape": "no rule: put what changes behind what stays",
    "text": "no rule: put what changes behind what stays",
}
"""Setting of the proxy, or what the application can do, by cause."""


class Example(NamedTuple):
    """One change.

    Attributes:
        line: of the log.
        where: the string in the body, as a JSON pointer.
        offset: characters of it that are equal (elements, of an array).
        before, after: what stands around the place in the earlier and in the later request; empty for what is no text.
    """

    line: int
    where: str
    offset: int
    before: str
    after: str


@dataclass(slots=True)
class Finding:
    """Changes of one kind.

    Attributes:
        cause: see :data:`prefixpilot.volatile.divergence.Cause`.
        requests: how many requests began with such a change.
        lost_tokens: length of what stood behind the changes in the fronts: computed anew because of them.
        example: the first of them.
    """

    cause: Cause
    example: Example
    requests: int = 0
    lost_tokens: int = 0

    @property
    def remedy(self) -> str:
        """What helps."""
        return REMEDIES[self.cause]


class _Front(NamedTuple):
    prompt: Prompt
    text: str
    lines: frozenset[str]

    def alike(self, other: _Front) -> float:
        """Which share of this front the other has, too: of its lines, or of its text at both ends. O(length)."""
        lines = len(self.lines & other.lines) / max(1, len(self.lines))
        head = common_prefix(self.text, other.text)
        tail = common_prefix(self.text[head:][::-1], other.text[head:][::-1])
        return max(lines, (head + tail) / max(1, len(self.text)))


@dataclass(slots=True)
class Fronts:
    """The fronts of a log, one after the other.

    Attributes:
        findings: changes, by cause.
        unlike: fronts that were like none of the recent ones of their model.
    """

    findings: dict[Cause, Finding] = field(default_factory=dict)
    unlike: int = 0
    _recent: OrderedDict[str, deque[_Front]] = field(default_factory=OrderedDict)

    def add(self, line: int, prompt: Prompt) -> None:
        """The next request. O(length of its front)."""
        prompt = front_of(prompt)
        recent = self._of_model(str(prompt.body.get("model")))
        if any(prompt == other.prompt for other in recent):
            return
        lines = _lines(prompt)
        front = _Front(prompt, "\n".join(lines), frozenset(lines))
        shares = [(front.alike(other), other) for other in recent]
        recent.append(front)
        share, alike = max(shares, key=lambda each: each[0], default=(0.0, front))
        if share < _LEAST_ALIKE:
            self.unlike += bool(shares)
            return
        divergence = first_divergence(alike.prompt, prompt)
        if divergence is not None:
            self._count(line, alike.prompt, prompt, divergence)

    def ranked(self) -> list[Finding]:
        """What was found, the costliest first."""
        return sorted(self.findings.values(), key=lambda found: (-found.lost_tokens, found.cause))

    def _of_model(self, model: str) -> deque[_Front]:
        recent = self._recent.pop(model, None)
        self._recent[model] = recent = deque(maxlen=RECENT) if recent is None else recent
        if len(self._recent) > _MODELS:
            self._recent.popitem(last=False)
        return recent

    def _count(self, line: int, other: Prompt, front: Prompt, divergence: Divergence) -> None:
        found = self.findings.get(divergence.cause)
        if found is None:
            example = _example(line, other, front, divergence)
            found = self.findings[divergence.cause] = Finding(divergence.cause, example)
        found.requests += 1
        found.lost_tokens += _behind(front, divergence)


def _lines(front: Prompt) -> list[str]:
    """What a front consists of, by which two of one application are alike."""
    tools = front.body.get("tools")
    named = [json.dumps(tool, sort_keys=True) for tool in tools] if isinstance(tools, list) else []
    return [*named, *(line for segment in front.segments() for line in segment.text.splitlines())]


def front_of(prompt: Prompt) -> Prompt:
    """The prompt up to the first message that is no system text."""
    messages = prompt.messages
    end = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    body = {key: prompt.body.get(key) for key in ("model", "tools")}
    return replace(prompt, body=body, messages=messages[:end], newest_user=-1, in_tool_loop=False)


def _behind(front: Prompt, divergence: Divergence) -> int:
    """Tokens of the front's texts behind the place."""
    if divergence.pointer == ("tools",):
        return sum(text_tokens(segment.text) for segment in front.segments())
    tokens, reached = 0, False
    for segment in front.segments():
        if reached:
            tokens += text_tokens(segment.text)
        elif segment.pointer == divergence.pointer:
            reached = True
            tokens += text_tokens(segment.text[divergence.offset :])
    return tokens


def _example(line: int, other: Prompt, front: Prompt, divergence: Divergence) -> Example:
    where = "/" + "/".join(map(str, divergence.pointer))
    before, after = (_around(prompt, divergence) for prompt in (other, front))
    return Example(line, where, divergence.offset, before, after)


def _around(prompt: Prompt, divergence: Divergence) -> str:
    for segment in prompt.segments():
        if segment.pointer == divergence.pointer:
            return segment.text[slice(*excerpt(segment.text, divergence.offset))]
    return ""
