"""The rules for volatile text, applied to a prompt: forms of its system texts, and words for the newest message.

Only system text before the conversation is treated: what changes there breaks the cached prefix of everything behind.
Rules read neither code fences nor documents. Nothing is lost: a treated text holds every character of the old one but
the times of day that stand in full in the newest message, and the billing header. Doing it again changes nothing; a
text for which that would not hold is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates
from prefixpilot.apis.base import Message, Pointer, Prompt, Segment
from prefixpilot.pieces import UNCHANGED, Form, Piece, Slot, Span, apply, fill
from prefixpilot.volatile.base import Change, Line, Rule, TextForm, VolatileRules, lines
from prefixpilot.volatile.billing import find_billing_header
from prefixpilot.volatile.clock import Rounding, find_clock, round_line
from prefixpilot.volatile.ids import is_id_line
from prefixpilot.volatile.layout import Block, behind, with_cuts
from prefixpilot.volatile.memory import find_sections
from prefixpilot.volatile.zones import Zones, touched, zones

_TIME_MARK = re.compile(r":[0-5][0-9]")
_ID_MARK = re.compile(r"[iI][dD][*_`\"]{0,3}[ \t]{0,4}[:=]")
_MEMORY_WORDS = ("memor", "user context")
"""What a line, or a text, must hold to be worth a look."""

_OWN_LINE = 40
"""A line moves with its time if it holds no more than this beside it."""

_MOST_CHANGES = 256
"""A text with more volatile lines than this is a log or a list, no prompt with a clock in it."""

_MOVES: Mapping[Rule, str] = {
    "clock": "the line with the current time moves behind the rest of its text",
    "ids": "a line with an id moves behind the rest of its text",
    "memory": "a section of memories moves behind the rest of its text",
}


_ROUNDED = "the time of day goes; the exact words stand in the newest message"


class Treatment(NamedTuple):
    """What the rules make of a prompt.

    Attributes:
        forms: of the system texts that change.
        newest: the text to append to, in the newest user message, and what: ``None`` if nothing is to be said there.
        changes: all that is done, for a dry run.
    """

    forms: tuple[TextForm, ...]
    newest: tuple[Pointer, str] | None
    changes: tuple[Change, ...]


class _Candidates(NamedTuple):
    clocks: list[int]
    ids: list[int]
    memory: bool


class _Treated(NamedTuple):
    form: Form
    said: tuple[str, ...]
    changes: tuple[Change, ...]


def treat(
    prompt: Prompt,
    rules: VolatileRules,
    *,
    to_anthropic: bool,
    stated: bool = False,
    excluded: Mapping[Pointer, Sequence[Span]] | None = None,
    templates: Templates = DEFAULT_TEMPLATES,
) -> Treatment:
    """Applies the rules that are on. Pure; O(system text).

    Args:
        to_anthropic: the upstream is Anthropic: the billing header stays.
        stated: the newest user message was sent before, with the exact time in its form: nothing is said again. In a
            tool loop a time is rounded only if this holds, else it would stand nowhere.
        excluded: spans of documents and the like that recognisers found, by the pointer of their string.
        templates: wording.
    """
    place = last_text(prompt.messages[prompt.newest_user]) if prompt.newest_user >= 0 else None
    clock = rules.clock == "round" and (stated if prompt.in_tool_loop else place is not None)
    forms: list[TextForm] = []
    said: list[str] = []
    changes: list[Change] = []
    for segment in system_texts(prompt):
        treatment = _Text(segment, rules, to_anthropic, clock, templates.time_moved)
        treated = treatment.treated((excluded or {}).get(segment.pointer, ()))
        if treated.form != UNCHANGED:
            forms.append(TextForm(segment.pointer, treated.form))
            said += treated.said
            changes += treated.changes
    newest = None
    if said and place is not None and not prompt.in_tool_loop and not stated:
        words = "; ".join(dict.fromkeys(said))
        newest = (place.pointer, "\n\n" + templates.exact_time.format(text=words))
        changes.append(
            Change("clock", place.pointer, Span(len(place.text), len(place.text)), "the exact time is told here")
        )
    return Treatment(tuple(forms), newest, tuple(changes))


def appended(form: Form, text: str, words: str) -> Form:
    """The form of ``text`` with ``words`` behind it.

    >>> apply(appended(UNCHANGED, "Hello", " [14:03]"), "Hello")
    'Hello [14:03]'
    """
    return (*(form or (Span(0, len(text)),)), words)


def system_texts(prompt: Prompt) -> list[Segment]:
    """Texts that stand before the conversation and may be changed."""
    found: list[Segment] = []
    for message in prompt.messages:
        if message.role != "system":
            break
        found += [segment for segment in message.segments if not segment.sealed]
    return found


def last_text(message: Message) -> Segment | None:
    """The last text of a user message that may be changed: what is told there stands behind it."""
    texts = [segment for segment in message.segments if segment.role == "user" and not segment.sealed]
    return texts[-1] if texts else None


class _Text:
    """One system text under the rules."""

    def __init__(self, segment: Segment, rules: VolatileRules, to_anthropic: bool, clock: bool, elsewhere: str) -> None:
        self._segment = segment
        self._rules = rules
        self._billing = rules.billing_header and not to_anthropic
        self._round = clock
        self._elsewhere = elsewhere

    def treated(self, excluded: Sequence[Span]) -> _Treated:
        """Its form; unchanged if doing it again would change something more."""
        text = self._segment.text
        once = self._once(text, touched(tuple(lines(text)), excluded))
        if once.form == UNCHANGED:
            return once
        after = apply(once.form, text)
        spans = [span for start, end in excluded for span in _kept(once.form, Span(start, end))]
        again = self._once(after, touched(tuple(lines(after)), spans))
        return once if again.form == UNCHANGED else _Treated(UNCHANGED, (), ())

    def _once(self, text: str, excluded: Sequence[bool]) -> _Treated:
        header = find_billing_header(text) if self._billing else None
        if header is None:
            return self._lines(text, excluded)
        goes = Change("billing-header", self._segment.pointer, header, "Claude Code's billing header goes")
        if not text[header.end :].strip():
            return _Treated(fill(len(text), [Slot(header, ())]), (), (goes,))
        rest = self._lines(text[header.end :], excluded[text.count("\n", 0, header.end) :])
        form = _at_end(rest.form, header.end, len(text))
        return _Treated(form, rest.said, (goes, *_shifted(rest.changes, header.end)))

    def _lines(self, text: str, excluded: Sequence[bool]) -> _Treated:
        """The rules that look at lines: times are rounded, blocks move."""
        candidates = self._worth_a_look(text)
        if not any(candidates):
            return _Treated(UNCHANGED, (), ())
        all_lines = tuple(lines(text))
        zone = zones(text, all_lines, excluded)
        roundings = self._roundings(text, all_lines, zone, candidates)
        blocks = self._blocks(text, all_lines, zone, candidates)
        if len(roundings) + len(blocks) > _MOST_CHANGES:
            return _Treated(UNCHANGED, (), ())
        layout = behind(text, all_lines, blocks)
        cuts = [cut for rounding in roundings for cut in rounding.cuts]
        pointer = self._segment.pointer
        changes = [Change("clock", pointer, cut, _ROUNDED) for cut, _ in cuts]
        changes += [Change(b.rule, pointer, _span(all_lines, b), _MOVES[b.rule]) for b in layout.moved]
        form = _form(text, all_lines, layout.order, cuts) if changes else UNCHANGED
        return _Treated(form, tuple(text[slice(*r.said)] for r in roundings), tuple(changes))

    def _roundings(self, text: str, all_lines: Sequence[Line], zone: Zones, candidates: _Candidates) -> list[Rounding]:
        if not self._round:
            return []
        free = (all_lines[i].content for i in candidates.clocks if zone.free(i))
        found = (round_line(text, line, self._elsewhere) for line in free)
        return [rounding for rounding in found if rounding is not None]

    def _blocks(self, text: str, all_lines: Sequence[Line], zone: Zones, candidates: _Candidates) -> list[Block]:
        """What moves, in order, not overlapping: a line belongs to the first rule that claims it."""
        sections = find_sections(text, all_lines, zone) if candidates.memory else []
        blocks = [Block(section.first, section.end, "memory") for section in sections]
        taken = {i for block in blocks for i in range(block.first, block.end)}
        for i in candidates.ids:
            if i not in taken and zone.free(i) and is_id_line(text, all_lines[i].content):
                blocks.append(Block(i, i + 1, "ids"))
                taken.add(i)
        clocks = () if self._round else candidates.clocks
        timed = (i for i in clocks if i not in taken and zone.free(i))
        blocks += [Block(i, i + 1, "clock") for i in timed if _is_clock_line(text[slice(*all_lines[i].content)])]
        return sorted(blocks)

    def _worth_a_look(self, text: str) -> _Candidates:
        """Lines that may hold a time or an id, and whether the text may hold memories: one fast pass for each."""
        timed = self._round or self._rules.clock == "move"
        return _Candidates(
            _lines_with(_TIME_MARK, text) if timed else [],
            _lines_with(_ID_MARK, text) if self._rules.ids else [],
            self._rules.memory and any(word in text.lower() for word in _MEMORY_WORDS),
        )


def _lines_with(mark: re.Pattern[str], text: str) -> list[int]:
    """Indices of the lines in which ``mark`` is found, in order."""
    found: list[int] = []
    at = number = 0
    for match in mark.finditer(text):
        number += text.count("\n", at, match.start())
        at = match.start()
        if not found or found[-1] != number:
            found.append(number)
    return found


def _is_clock_line(line: str) -> bool:
    reading = find_clock(line)
    return reading is not None and len(line.strip()) <= reading.said.end - reading.said.start + _OWN_LINE


def _span(all_lines: Sequence[Line], block: Block) -> Span:
    return Span(all_lines[block.first].content.start, all_lines[block.end - 1].ending.end)


def _form(text: str, all_lines: Sequence[Line], order: Sequence[int], cuts: Sequence[tuple[Span, Form]]) -> Form:
    """All lines in their new order without the cuts; breaks stay where they are."""
    within: list[list[tuple[Span, Form]]] = [[] for _ in all_lines]
    at = 0
    for i, line in enumerate(all_lines):
        while at < len(cuts) and cuts[at][0].end <= line.content.end:
            within[i].append(cuts[at])
            at += 1
    pieces: list[Piece] = []
    for place, source in zip(all_lines, order, strict=True):
        pieces += [*with_cuts(all_lines[source].content, within[source]), place.ending]
    return fill(len(text), [Slot(Span(0, len(text)), tuple(pieces))])


def _at_end(form: Form, offset: int, length: int) -> Form:
    """The form of a text from that of its end, which begins at ``offset``; what stands before it goes."""
    if form == UNCHANGED:
        return (Span(offset, length),)
    return tuple(p if isinstance(p, str) else Span(p.start + offset, p.end + offset) for p in form)


def _shifted(changes: Sequence[Change], offset: int) -> list[Change]:
    return [c._replace(span=Span(c.span.start + offset, c.span.end + offset)) for c in changes]


def _kept(form: Form, span: Span) -> list[Span]:
    """Where the characters of a span of the original stand in what ``form`` makes of it."""
    found: list[Span] = []
    at = 0
    for piece in form:
        if isinstance(piece, str):
            at += len(piece)
            continue
        start, end = max(piece.start, span.start), min(piece.end, span.end)
        if start < end:
            found.append(Span(at + start - piece.start, at + end - piece.start))
        at += piece.end - piece.start
    return found
