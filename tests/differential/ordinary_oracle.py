"""Judges ordinary prompts: every string that reached the engine is taken apart into what its application wrote.

Known are only the marks of the application and the documented wording of annotations: ``[Unchanged: same text as NAME
above.]``, ``[Unchanged: as in NAME above, from "..." to "...".]`` and ``[In order of relevance: A > B > the rest]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .applications import Layout, Unit
from .blocks_oracle import TAG
from .clients import Body, Entry, Place, Result, Says, Use
from .reading import Changed, Violation, at, check_text, differences, read

FREE_MODEL: Final = "granite-3.3"
"""To models of this name the order of `documents` means nothing."""
OPENING: Final = "[Unchanged: "
SAME: Final = re.compile(r"\[Unchanged: same text as (.+) above\.\]", re.DOTALL)
RUN: Final = re.compile(r'\[Unchanged: as in (.+) above, from "(.*)" to "(.*)"\.\]', re.DOTALL)
RANKING: Final = re.compile(r"\s+\[In order of relevance: ([^\n]*)\]")
LATEST: Final = re.compile(r"the latest result of ([\w-]+)\((.*)\)", re.DOTALL)
BEGINS: Final = re.compile(r'(?:the text|(.*)) that begins "(.*)"', re.DOTALL)


class Note(NamedTuple):
    """An annotation, and the text in whose place it stands.

    Attributes:
        name: what it calls the text.
        whole: it stands for a whole body; else for a part, ``first`` to ``last``.
    """

    name: str
    replaced: str
    whole: bool
    first: str = ""
    last: str = ""


class Met(NamedTuple):
    """A unit as it was sent."""

    unit: Unit
    notes: tuple[Note, ...]


class Standing(NamedTuple):
    """A text of the prompt so far.

    Attributes:
        around: what stands around its body, where its label is.
        call: name and arguments, of a whole tool result.
        full: no annotation stands in it.
        onward: it is a text and all that stands behind it in its string, where nothing shows where a text ends.
    """

    text: str
    around: str
    call: tuple[str, str] | None
    full: bool
    onward: bool = False


@dataclass(slots=True)
class Sender:
    """What the engine has had of one user.

    Attributes:
        strings: of a history up to an entry, and a place in it, the string that was sent.
        documents: of those beside the messages, behind a first message, the order in which they were sent.
    """

    strings: dict[tuple[str, tuple[Entry, ...], int], str] = field(default_factory=dict)
    documents: dict[tuple[str, tuple[Entry, ...]], str] = field(default_factory=dict)
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """An ordinary request.

    Attributes:
        layouts: of strings that an application made, by the string.
    """

    body: Body
    text: str
    system: str
    entries: tuple[Entry, ...]
    layouts: Mapping[str, Layout]
    sender: Sender
    user: str


@dataclass(slots=True)
class Judged:
    """A prompt that holds what was promised."""

    strings: list[str] = field(default_factory=list)
    documents: str = ""
    notes: int = 0
    moved: int = 0
    kept: int = 0
    rankings: int = 0


def judge(case: Case, sent: bytes) -> Judged:
    """Raises Violation. O(bytes)."""
    text = sent.decode()
    strangers = set(TAG.findall(text)) - {case.user}
    if strangers:
        raise Violation("users mixed", f"a prompt of {case.user} holds texts of {sorted(strangers)}")
    judged = Judged()
    if text == case.text:
        judged.strings = [str(at(case.body.value, place.pointer)) for place in case.body.places]
    else:
        judged.strings = _changed(case, sent, judged)
    _Prompt(case, judged).judge()
    return judged


def _changed(case: Case, sent: bytes, judged: Judged) -> list[str]:
    theirs, ours = read(case.text.encode()), read(sent)
    permuted = _documents(case, theirs, ours, judged)
    found = list(differences(theirs, ours))
    allowed = {place.pointer for place in case.body.places if place.role != "assistant"}
    for difference in found:
        if not isinstance(difference, Changed) or difference.pointer not in allowed:
            raise Violation("changed", f"{difference.pointer} was changed")
    if not permuted:
        check_text(case.text, sent.decode(), len(found))
    return [str(at(ours, place.pointer)) for place in case.body.places]


def _documents(case: Case, theirs: Any, ours: Any, judged: Judged) -> bool:
    """Whether the documents beside the messages stand in another order; only some models may get them so."""
    given, sent = theirs.get("documents"), ours.get("documents")
    if given == sent or not isinstance(given, list) or not isinstance(sent, list):
        return False
    if FREE_MODEL not in str(theirs["model"]) or sorted(map(str, given)) != sorted(map(str, sent)):
        raise Violation("order", f"the documents {given} became {sent}")
    ours["documents"] = given
    judged.documents = json.dumps(sent)
    judged.moved += 1
    return True


class _Prompt:
    """One prompt under examination."""

    def __init__(self, case: Case, judged: Judged) -> None:
        self.case = case
        self.judged = judged
        self.standing: list[Standing] = []
        self.calls: dict[str, Use] = {}
        for entry in case.entries:
            if isinstance(entry, Says):
                self.calls.update({use.id: use for use in entry.uses})

    def judge(self) -> None:
        case = self.case
        for i, (place, ours) in enumerate(zip(case.body.places, self.judged.strings, strict=True)):
            theirs = str(at(case.body.value, place.pointer))
            layout = case.layouts.get(theirs)
            if layout is None and theirs != ours:
                layout = Layout("", (Unit("", theirs),), "", "", movable=False, repeats=place.role == "tool")
            if layout is not None:
                self._string(place, layout, ours)
            frozen = case.sender.strings.get(_key(case, place, i))
            if frozen is not None and frozen != ours and not case.sender.doubt:
                raise Violation("frozen prefix", f"entry {place.entry} was sent as\n{frozen}\nand now as\n{ours}")
            self.judged.kept += frozen is not None and frozen != theirs
        documents = case.sender.documents.get(_beside(case), self.judged.documents)
        if documents != self.judged.documents and not case.sender.doubt:
            raise Violation("frozen prefix", f"the documents were sent as {documents}")

    def _string(self, place: Place, layout: Layout, ours: str) -> None:
        if ours == layout.text:
            met: Sequence[Met] = [Met(unit, ()) for unit in layout.units]
        else:
            met = self._taken_apart(layout, ours)
        rows: list[Standing] = []
        before = len(self.standing)
        for unit, notes in met:
            text = layout.decoded(unit.body) if unit in layout.units else unit.body
            for note in notes:
                self._check(note, layout)
            self.standing.append(Standing(text, f"{layout.heading}\0{unit.before}\0{unit.behind}", None, not notes))
            if not unit.before and not notes:
                rows = self._joined(rows, text, layout.joint)
                self.standing[before:] = [s for s in self.standing[before:] if not s.onward] + rows
        if place.role == "tool":
            entry = self.case.entries[place.entry]
            use = self.calls.get(entry.use_id) if isinstance(entry, Result) else None
            call = None if use is None else (use.name, use.arguments)
            self.standing.append(Standing(layout.text, "", call, ours == layout.text))
        self.judged.notes += sum(len(notes) for _, notes in met)
        self.judged.moved += [unit for unit, _ in met] != list(layout.units)

    def _joined(self, rows: Sequence[Standing], text: str, joint: str) -> list[Standing]:
        """Texts that are joined by white space alone may be taken for one."""
        return [*(row._replace(text=row.text + joint + text) for row in rows), Standing(text, "", None, True, True)]

    def _taken_apart(self, layout: Layout, ours: str) -> Sequence[Met]:
        """Every unit once, whole or with annotations; every character of the frame."""
        if layout.repeats and len(layout.units) and (whole := _note(ours, layout.text)) is not None:
            return [Met(Unit("", layout.text), (whole,))]
        tail = layout.tail
        if not ours.startswith(layout.head) or not ours.endswith(tail):
            raise Violation("evidence lost", f"the frame of {layout.text!r} became {ours!r}")
        inner = ours[len(layout.head) : len(ours) - len(tail)]
        found = next(_units(inner, 0, layout.units, layout), None)
        if found is None:
            raise Violation("evidence lost", f"{layout.text!r} became {ours!r}")
        met, ranking = found
        if ranking:
            self._check_ranking(ranking, layout)
        return met

    def _check_ranking(self, ranking: str, layout: Layout) -> None:
        labels = ranking.removesuffix(" > the rest").split(" > ")
        self.judged.rankings += 1
        for label, unit in zip(labels, layout.units, strict=False):
            if not _named(label, f"{unit.before}\0{unit.behind}"):
                raise Violation("wrong pairing", f"{ranking!r} is not the order of relevance of {layout.text!r}")
        if (len(labels) < len(layout.units)) != ranking.endswith(" > the rest"):
            raise Violation("order", f"{ranking!r} is not all of it")

    def _check(self, note: Note, layout: Layout) -> None:
        """What an annotation stands for stands in full before it, and its words mean nothing else."""
        if not layout.repeats:
            raise Violation("evidence lost", f"{note.name!r} stands for a text that has to stay")
        if not any(self._held(note, standing) and standing.full for standing in self.standing):
            raise Violation("evidence lost", f"{note.replaced!r} stands nowhere before {note.name!r}")
        words = " ".join(note.replaced.split())
        if not note.whole and not (words.startswith(note.first) and words.endswith(note.last)):
            raise Violation("unclear words", f"{words!r} is not from {note.first!r} to {note.last!r}")
        bearers = self._bearers(note.name)
        if not any(self._held(note, standing) and standing.full for standing in bearers):
            raise Violation("unclear words", f"{note.name!r} does not name {note.replaced!r} where it stands in full")
        others = {s.text for s in bearers if not s.onward and not any(self._held(note, o) for o in bearers if o.onward)}
        others -= {s.text for s in bearers if self._held(note, s)}
        if others:
            raise Violation("unclear words", f"{note.name!r} may mean {sorted(others)} too")

    def _held(self, note: Note, standing: Standing) -> bool:
        return note.replaced == standing.text if note.whole else note.replaced.strip() in standing.text

    def _bearers(self, name: str) -> list[Standing]:
        """The texts that the words of an annotation may mean."""
        latest = LATEST.fullmatch(name)
        if latest is not None:
            found = [s for s in self.standing if s.call is not None and self._is_call(s.call, latest[1], latest[2])]
            return found[-1:]
        begins = BEGINS.fullmatch(name)
        label, words = (name, "") if begins is None else (begins[1], begins[2])
        if label and label.isdigit():
            raise Violation("unclear words", f"{name!r} names a text by a bare number")
        return [
            s
            for s in self.standing
            if s.call is None and (not label or _named(label, s.around)) and " ".join(s.text.split()).startswith(words)
        ]

    def _is_call(self, call: tuple[str, str], name: str, arguments: str) -> bool:
        """Anthropic's arguments are an object, however it is written."""
        if self.case.body.api == "messages":
            return call[0] == name and json.loads(call[1]) == json.loads(arguments)
        return call == (name, arguments)


def _named(label: str, around: str) -> bool:
    """Whether a label stands there as a word of its own, not as the end of a path."""
    return re.search(rf"(?<![\w/.-]){re.escape(label)}(?!\w)", around) is not None


def _units(text: str, start: int, left: tuple[Unit, ...], layout: Layout) -> Iterator[tuple[tuple[Met, ...], str]]:
    """All ways to read the units; the words of an order annotation, if one stands behind them."""
    if not left:
        words = RANKING.fullmatch(text, start)
        if start == len(text):
            yield (), ""
        elif words is not None:
            yield (), words[1]
        return
    for i, unit in enumerate(left if layout.movable else left[:1]):
        if unit in left[:i]:
            continue
        rest = left[:i] + left[i + 1 :]
        for met, end in _unit(text, start, unit, layout, last=not rest):
            joint = layout.joint if rest else ""
            if text.startswith(joint, end):
                for others, ranking in _units(text, end + len(joint), rest, layout):
                    yield (met, *others), ranking


def _unit(text: str, start: int, unit: Unit, layout: Layout, *, last: bool) -> Iterator[tuple[Met, int]]:
    whole = unit.before + unit.body + unit.behind
    if text.startswith(whole, start):
        yield Met(unit, ()), start + len(whole)
    if not layout.repeats or not text.startswith(unit.before, start):
        return
    body = start + len(unit.before)
    stop = unit.behind + ("" if last else layout.joint)
    ends = range(len(text), body, -1) if not stop and RANKING.search(text, body) else _ends(text, body, stop)
    for end in ends:
        notes = _notes(text[body:end], unit.body, layout)
        if notes and text.startswith(unit.behind, end):
            yield Met(unit, notes), end + len(unit.behind)


def _ends(text: str, start: int, stop: str) -> Iterator[int]:
    if not stop:
        yield len(text)
        return
    end = text.find(stop, start)
    while end >= 0:
        yield end
        end = text.find(stop, end + 1)


def _note(ours: str, theirs: str) -> Note | None:
    """One annotation in the place of all of a text."""
    same = SAME.fullmatch(ours) if ours.count(OPENING) == 1 else None
    return None if same is None else Note(same[1], theirs, whole=True)


def _notes(ours: str, theirs: str, layout: Layout) -> tuple[Note, ...]:
    """The annotations with which a body was sent; none if it cannot be read so."""
    if OPENING not in ours:
        return ()
    try:
        whole = _note(layout.decoded(ours), layout.decoded(theirs))
    except ValueError:
        return ()  # no text of JSON: this is not where it ends
    return (whole,) if whole is not None else _runs(ours, theirs)


def _runs(ours: str, theirs: str) -> tuple[Note, ...]:
    """A body of which parts became annotations."""
    opened = ours.find(OPENING)
    while opened >= 0:
        if theirs[:opened] != ours[:opened]:
            return ()
        end = ours.find(".]", opened)
        while end >= 0:
            run = RUN.fullmatch(ours, opened, end + 2)
            if run is not None:
                for size, others in _rest(ours[end + 2 :], theirs[opened:]):
                    replaced = theirs[opened : opened + size]
                    return (Note(run[1], replaced, whole=False, first=run[2], last=run[3]), *others)
            end = ours.find(".]", end + 1)
        opened = ours.find(OPENING, opened + 1)
    return ()


def _rest(ours: str, theirs: str) -> Iterator[tuple[int, tuple[Note, ...]]]:
    """How much of the original an annotation stands for, and those behind it."""
    if theirs.endswith(ours):
        yield len(theirs) - len(ours), ()
        return
    opened = ours.find(OPENING)
    if opened > 0:
        piece = ours[:opened]
        size = theirs.find(piece)
        while size >= 0:
            others = _runs(ours, theirs[size:])
            if others:
                yield size, others
            size = theirs.find(piece, size + 1)


def remember(case: Case, judged: Judged) -> None:
    """The engine has answered."""
    for i, (place, ours) in enumerate(zip(case.body.places, judged.strings, strict=True)):
        case.sender.strings[_key(case, place, i)] = ours
    case.sender.documents[_beside(case)] = judged.documents


def _beside(case: Case) -> tuple[str, tuple[Entry, ...]]:
    return json.dumps(case.body.value.get("documents")), case.entries[:1]


def _key(case: Case, place: Place, index: int) -> tuple[str, tuple[Entry, ...], int]:
    """System text belongs to the conversation that its first message opens; documents beside the messages stand above
    all of them."""
    return case.system + _beside(case)[0], case.entries[: max(place.entry, 0) + 1], index
