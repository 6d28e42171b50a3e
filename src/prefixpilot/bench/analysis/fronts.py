"""What changes in front of the documents from one request of a log to the next.

Everything behind a change there is computed anew, whatever the documents do. Fronts, and where they part, are those
that the proxy looks at (:mod:`prefixpilot.proxy.cache.fronts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from prefixpilot.bench.analysis.tokens import text_tokens
from prefixpilot.proxy.cache.fronts import Front, Fronts, Parting
from prefixpilot.volatile.divergence import Cause, excerpt

REMEDIES: Final[dict[Cause, str]] = {
    "clock": "--volatile-clock round (or move)",
    "ids": "--volatile-ids",
    "memory": "--volatile-memory",
    "billing-header": "--volatile-billing-header",
    "tool-order": "--volatile-tool-order",
    "date": "no rule: it changes once a day",
    "tools": "no rule: send the same tools to every request",
    "order": "no rule: write these lines in a fixed order",
    "whitespace": "no rule: write the same white space",
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


class Findings:
    """The changes of a log, request by request."""

    def __init__(self) -> None:
        self._fronts = Fronts()
        self._found: dict[Cause, Finding] = {}

    def add(self, line: int, model: str, front: Front) -> None:
        """The next request. A front that is another one altogether, an other application's, is no change. O(its
        length)."""
        nearest = self._fronts.nearest(model, front)
        self._fronts.add(model, front)
        if nearest is None:
            return
        parting, other = nearest
        if parting.volatile or parting.kind == "tools":
            found = self._found.get(parting.kind)
            if found is None:
                example = _example(line, other, front, parting)
                found = self._found[parting.kind] = Finding(parting.kind, example)
            found.requests += 1
            found.lost_tokens += _behind(front, parting)

    def ranked(self) -> list[Finding]:
        """What was found, the costliest first."""
        return sorted(self._found.values(), key=lambda found: (-found.lost_tokens, found.cause))


def _behind(front: Front, parting: Parting) -> int:
    """Tokens of the front's texts behind the place."""
    tokens, reached = 0, parting.pointer == ("tools",)
    for segment in front.prompt.segments():
        if reached:
            tokens += text_tokens(segment.text)
        elif segment.pointer == parting.pointer:
            reached = True
            tokens += text_tokens(segment.text[parting.offset :])
    return tokens


def _example(line: int, other: Front, front: Front, parting: Parting) -> Example:
    where = "/" + "/".join(map(str, parting.pointer))
    before, after = (_around(each, parting) for each in (other, front))
    return Example(line, where, parting.offset, before, after)


def _around(front: Front, parting: Parting) -> str:
    for segment in front.prompt.segments():
        if segment.pointer == parting.pointer:
            return segment.text[slice(*excerpt(segment.text, parting.offset))]
    return ""
