"""Finds runs of equal-shaped units: the one engine behind all formats that write a mark at the head of each unit.

A :class:`~prefixpilot.formats.shape.Shape` says how a format writes its units. What proves an edge:

* The head of a unit counts only where a run may begin (``front``) or right behind the unit before it. Any other head is
  text that looks like one, and stays inside the body that quotes it.
* A unit with a closing mark ends at the mark that balances its head, right in front of the next head or of what must
  follow the run. Marks that a body quotes balance among themselves, or more of the body follows them.
* A unit without a closing mark ends where the joint and the next head stand. For the last one the end of the run must
  be seen, exactly once.
* Where the end of the last unit is not proved, that unit is left out, and nothing is looked for behind its head, since
  all of that may be its body. What stands in front of it is proved all the same.

Cost: every pattern is tried in O(length), because no repeat inside a repeat can match the same characters in two ways;
the walk over what they match is stopped after :data:`_STEPS` steps for each match.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Literals, Region, Unit
from prefixpilot.formats.heads import (
    all_of,
    closings_of,
    decoded,
    group,
    heads_of,
    label_of,
    manner,
    number_of,
    same_key,
    score_of,
)
from prefixpilot.formats.marks import MarkGroups
from prefixpilot.formats.shape import Shape
from prefixpilot.pieces import Span

_STEPS: Final = 64
_FRONT_LENGTH: Final = 400
_FRONT_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class RunRecogniser:
    """Finds the runs of one shape in what users and systems say. Tool results and assistants' words it leaves alone."""

    roles: ClassVar[tuple[Role, ...]] = ("system", "user")

    shape: Shape
    name: str = field(init=False)
    marks: MarkGroups = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.shape.name)
        object.__setattr__(self, "marks", self.shape.marks())

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        if segment.sealed or segment.role not in self.roles:
            return ()
        return tuple(_Scan(self.shape, segment.text).regions())


class _Found(NamedTuple):
    """A unit with proved edges."""

    head: re.Match[str]
    content_end: int
    end: int


class _Walk(NamedTuple):
    """What a walk from one head found: units, none if in doubt, and the index of the first head behind them.

    If the end of the last unit is not proved, the walk is not ``whole``: all that follows may stand in that unit.
    """

    found: list[_Found]
    seen: int
    whole: bool


class _SpentError(Exception):
    """The walk over the matches took too many steps: no text of an application's does that."""


class _Scan:
    """One shape in one text. Lives for one call."""

    def __init__(self, shape: Shape, text: str) -> None:
        self.shape = shape
        self.text = text
        self.heads = heads_of(shape, text)
        self.closings = closings_of(shape, text) if self.heads else []
        self._closing_at = {mark.end(): mark for mark in self.closings}
        self._stops = all_of(shape.stop, text) if self.heads else []
        self._headings = all_of(shape.heading, text) if self.heads else []
        self._backs = all_of(shape.back, text) if self.heads and not shape.closing else []
        self._steps = _STEPS * (len(self.heads) + len(self.closings) + len(self._backs))

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise _SpentError

    def regions(self) -> list[Region]:
        regions: list[Region] = []
        try:
            for run in self._runs():
                regions += self._region(run)
        except _SpentError:
            pass
        return regions

    def _runs(self) -> Iterator[list[_Found]]:
        at, behind = 0, 0
        while at < len(self.heads):
            head = self.heads[at]
            at += 1
            if head.start() >= behind and self._may_begin(head):
                walk = self._walk(at - 1)
                at = walk.seen
                if walk.found:
                    behind = walk.found[-1].end
                    yield walk.found
                if not walk.whole:
                    return

    def _may_begin(self, head: re.Match[str]) -> bool:
        if self.shape.numbers == "sequence" and int(head["number"]) > 1:
            return False
        return self._may_follow(head.start()) and self._front(head) is not None

    def _may_follow(self, start: int) -> bool:
        """Whether the character in front of a place, white space left out, may end what stands in front of a run."""
        ends = self.shape.front_ends
        if not ends:
            return True
        end = self._bare_end(max(0, start - _FRONT_LENGTH), start)
        return end > 0 and self.text[end - 1] in ends

    def _front(self, head: re.Match[str]) -> re.Match[str] | None:
        """What lets a run begin at ``head``."""
        self.step()
        begin, nearest = head.start(), max(0, head.start() - _FRONT_LENGTH)
        for _ in range(_FRONT_LINES):
            begin = max(nearest, self.text.rfind("\n", nearest, begin))
        return self.shape.front.search(self.text, begin, head.start())

    def _walk(self, first: int) -> _Walk:
        """The units from head ``first`` on."""
        found: list[_Found] = []
        start = self.heads[first]
        written = manner(start)
        numbers = {group(start, "number")}
        limit = self._limit(start)
        gap: str | None = None
        unit = _Open(self, first)
        for index in range(first + 1, len(self.heads)):
            self.step()
            head = self.heads[index]
            if head.start() >= limit:
                break
            if self._empty(unit.head, head) and manner(head) == written:
                return _Walk([], index, whole=False)
            end = self._joined(unit.head, head)
            closed = unit.closed_at(head.start())
            if end is None or not closed or manner(head) != written:
                if self.closings and closed and self._may_begin(head):
                    break
                unit.quotes(head)
                continue
            number = group(head, "number")
            if self.shape.numbers != "free" and number in numbers:
                return _Walk([], index, whole=False)
            if self.shape.numbers == "sequence" and int(head["number"]) != int(unit.head["number"]) + 1:
                continue
            if gap not in (None, self.text[end : head.start()]):
                break
            gap = self.text[end : head.start()]
            numbers.add(number)
            found.append(self._ended(unit.head, end))
            unit = _Open(self, index)
        last = self._last(unit, limit, start)
        return _Walk(found + last, unit.index + 1, whole=bool(last))

    def _limit(self, first: re.Match[str]) -> int:
        """Where the run that begins here ends at the latest."""
        at = bisect_left(self._stops, first.end(), key=re.Match.start)
        return self._stops[at].start() if at < len(self._stops) else len(self.text)

    def _joined(self, before: re.Match[str], head: re.Match[str]) -> int | None:
        """The end of the unit of ``before``, if nothing but a joint stands between it and ``head``."""
        if self.shape.closing is None:
            end = head.start() - len(self.shape.joint)
            return end if end >= before.end() and self.text.startswith(self.shape.joint, end) else None
        end = self._bare_end(before.end(), head.start())
        mark = self._closing_at.get(end)
        return end if mark is not None and mark.start() >= before.end() and same_key(before, mark) else None

    def _empty(self, before: re.Match[str], head: re.Match[str]) -> bool:
        """Whether two heads stand so close that one must be the body of the other, and which, cannot be told."""
        close = self.shape.closing is None and head.start() - before.end() <= len(self.shape.joint)
        return close and not self.text[before.end() : head.start()].strip()

    def _ended(self, head: re.Match[str], end: int) -> _Found:
        mark = self._closing_at.get(end)
        return _Found(head, mark.start() if mark and self.shape.closing else end, end)

    def _last(self, unit: _Open, limit: int, first: re.Match[str]) -> list[_Found]:
        """The last unit of a run, if its end can be proved."""
        if self.shape.closing is not None:
            end = self._last_closed(unit)
        elif self.shape.stop is not None:
            end = self._last_stopped(unit.head, limit)
        else:
            end = self._last_framed(unit.head, first)
        return [] if end is None else [self._ended(unit.head, end)]

    def _last_closed(self, unit: _Open) -> int | None:
        back = self.shape.back
        for mark in unit.balancing():
            if back is None or back.match(self.text, mark.end()):
                return None if unit.closed_again(mark.end()) else mark.end()
        return None

    def _last_stopped(self, head: re.Match[str], limit: int) -> int | None:
        end = self._bare_end(head.end(), limit)
        if not self.shape.lines:
            return end if limit < len(self.text) else None
        goes_on = self.heads[-1].start() > limit
        return None if goes_on or "\n" in self.text[head.end() : end] else end

    def _last_framed(self, head: re.Match[str], first: re.Match[str]) -> int | None:
        front = self._front(first)
        ends: list[int] = []
        for at in range(bisect_left(self._backs, head.end(), key=re.Match.start), len(self._backs)):
            self.step()
            if front is None or group(front, "frame") == group(self._backs[at], "frame"):
                ends.append(self._backs[at].start())
        return self._bare_end(head.end(), ends[0]) if len(ends) == 1 else None

    def _bare_end(self, start: int, end: int) -> int:
        """``end`` without the white space in front of it."""
        while end > start and self.text[end - 1].isspace():
            end -= 1
        return end

    def _region(self, run: Sequence[_Found]) -> list[Region]:
        shape = self.shape
        units = [unit for unit in map(self._unit, run) if unit is not None]
        if len(units) < len(run) or (len(run) < 2 and not shape.lone):
            return []
        movable = shape.movable and len(units) > 1
        literal: Literals = "json" if shape.in_json else "text"
        ranked = shape.ranked and _tell_their_order([unit.head for unit in run])
        return [Region(shape.name, tuple(units), movable, ranked, shape.repeats, literal)]

    def _unit(self, found: _Found) -> Unit | None:
        body = self._body(found.head.end(), found.content_end)
        text = decoded(self.text[body.start : body.end], self.shape.in_json)
        if text is None or len(text) < self.shape.least:
            return None
        return Unit(Span(found.head.start(), found.end), body, text, self._label(found.head))

    def _body(self, start: int, end: int) -> Span:
        """The bare text of a unit whose content stands there."""
        inner = self.shape.inner.search(self.text, start, end) if self.shape.inner else None
        if inner is not None:
            child = group(inner, "child")
            close = self.text.rfind(f"</{child}>" if child else "]]>", inner.end(), end)
            if close >= 0:
                start, end = inner.end(), close
        if self.shape.in_json:
            return Span(start, end)
        content = self.text[start:end]
        start += len(content) - len(content.lstrip())
        return Span(start, start + len(content.strip()))

    def _label(self, head: re.Match[str]) -> str | None:
        label = label_of(head)
        if label is None and self._headings:
            at = bisect_right(self._headings, head.start(), key=re.Match.start)
            label = (group(self._headings[at - 1], "label") or "").strip(" \n:") or None if at else None
        return label


class _Open:
    """A unit whose end is looked for: how many heads and closing marks of its own kind stand behind its head.

    Must hold: asked for positions in rising order.
    """

    def __init__(self, scan: _Scan, index: int) -> None:
        self.head = scan.heads[index]
        self.index = index
        self._scan = scan
        self._next = bisect_left(scan.closings, self.head.end(), key=re.Match.start)
        self._first_mark = self._next
        self._open = 1

    def closed_at(self, position: int) -> bool:
        """Whether all that was opened in front of ``position`` is closed; always, where nothing closes a unit."""
        closings = self._scan.closings
        while self._next < len(closings) and closings[self._next].end() <= position:
            self._scan.step()
            self._open -= same_key(self.head, closings[self._next])
            self._next += 1
        return self._open <= 0 or self._scan.shape.closing is None

    def quotes(self, head: re.Match[str]) -> None:
        """A head stands inside the body."""
        self._open += same_key(self.head, head)

    def balancing(self) -> Iterator[re.Match[str]]:
        """Marks that close all that was opened in front of them."""
        opened, at = 1, self.index + 1
        for index in range(self._first_mark, len(self._scan.closings)):
            mark = self._scan.closings[index]
            while at < len(self._scan.heads) and self._scan.heads[at].start() < mark.start():
                self._scan.step()
                opened += same_key(self.head, self._scan.heads[at])
                at += 1
            self._scan.step()
            opened -= same_key(self.head, mark)
            if opened <= 0 and same_key(self.head, mark):
                yield mark

    def closed_again(self, end: int) -> bool:
        """Whether more is closed than opened behind ``end``: one of those marks may be what closes this unit."""
        scan, back = self._scan, self._scan.shape.back
        at, opened = bisect_left(scan.heads, end, key=re.Match.start), 0
        for index in range(bisect_left(scan.closings, end, key=re.Match.start), len(scan.closings)):
            mark = scan.closings[index]
            while at < len(scan.heads) and scan.heads[at].start() < mark.start():
                scan.step()
                opened += same_key(self.head, scan.heads[at])
                at += 1
            scan.step()
            if opened:
                opened -= same_key(self.head, mark)
            elif same_key(self.head, mark) and (back is None or back.match(scan.text, mark.end())):
                return True
        return False


def _tell_their_order(heads: Sequence[re.Match[str]]) -> bool:
    """Whether labels show the order in which units stand: numbers that count up by one, or falling scores."""
    numbers = [number_of(head) for head in heads]
    if all(before is not None and after == before + 1 for before, after in pairwise(numbers)):
        return True
    scores = [score_of(head) for head in heads]
    return all(before is not None and after is not None and before > after for before, after in pairwise(scores))
