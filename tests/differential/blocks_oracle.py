"""Judges prompts with ``context_blocks``: what was put in front of each user message, read by the documented wording.

What stands in front of a message is paragraphs with blank lines between: ``[Doc 3] title`` and a block's text on the
next line, or ``Please refer to [Doc 3] above.``; behind them perhaps the order annotation. Every character is accounted
for, so that a text that belongs to nobody in the conversation is found too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .clients import Asks, Body, Entry, Says
from .reading import Added, Changed, Violation, at, check_text, differences, read

LABEL: Final = re.compile(r"\[(Doc \d+)\]")
POINTS: Final = re.compile(r"Please refer to \[(Doc \d+)\] (above|in the previous conversation)\.")
ORDER: Final = re.compile(
    r"Please read the context in the following priority order: "
    r"(\[Doc \d+\](?: > \[Doc \d+\])*)(, then the rest,)? and answer the question\."
)
TAG: Final = re.compile(r"~(\w+)~")
"""Marks a text as one user's own."""


class Block(NamedTuple):
    """A context block."""

    text: str
    title: str = ""

    @property
    def behind_label(self) -> str:
        return f" {self.title}\n{self.text}" if self.title else f"\n{self.text}"


class Stands(NamedTuple):
    """A block in full."""

    label: str
    block: Block


class Points(NamedTuple):
    """An annotation in the place of one."""

    label: str
    earlier_turn: bool


class Front(NamedTuple):
    """What stands in front of a user message.

    Attributes:
        order: labels of the order annotation, most relevant first.
        rest: it says that there are others.
    """

    items: tuple[Stands | Points, ...] = ()
    order: tuple[str, ...] = ()
    rest: bool = False


NOTHING: Final = Front()


def parse_front(text: str, blocks: Sequence[Block]) -> Front | None:
    """The text as paragraphs, each block used as often as it is there at most; ``None`` if it is anything else."""
    known = sorted(set(blocks), key=lambda block: -len(block.text))
    return next(_parsed(text, 0, Counter(blocks), known, ()), None)


def _parsed(
    text: str, start: int, left: Counter[Block], known: Sequence[Block], items: tuple[Stands | Points, ...]
) -> Iterator[Front]:
    order = ORDER.fullmatch(text, start)
    if order is not None:
        yield Front(items, tuple(LABEL.findall(order[1])), order[2] is not None)
    for item, end in _items(text, start, left, known):
        rest = left - Counter([item.block]) if isinstance(item, Stands) else left
        if end == len(text):
            yield Front((*items, item))
        elif text.startswith("\n\n", end):
            yield from _parsed(text, end + 2, rest, known, (*items, item))


def _items(
    text: str, start: int, left: Counter[Block], known: Sequence[Block]
) -> Iterator[tuple[Stands | Points, int]]:
    label = LABEL.match(text, start)
    if label is not None:
        for block in known:
            if left[block] and text.startswith(block.behind_label, label.end()):
                yield Stands(label[1], block), label.end() + len(block.behind_label)
    points = POINTS.match(text, start)
    if points is not None:
        yield Points(points[1], points[2] != "above"), points.end()


@dataclass(slots=True)
class Memory:
    """What the engine has had of one conversation, under one id, credential and mode.

    Attributes:
        fronts: of every chain of user and tool messages that ends in a user message, all fronts that it was sent with.
        paths: of every whole history that the engine has answered, reply included, the fronts of its user messages.
        branches: the same by user and tool messages alone.
        doubt: an error of ours was injected, or the client changed what the engine said: less is promised.
    """

    fronts: dict[tuple[Entry, ...], dict[str, Front]] = field(default_factory=dict)
    paths: dict[tuple[Entry, ...], set[tuple[str, ...]]] = field(default_factory=dict)
    branches: dict[tuple[Entry, ...], set[tuple[str, ...]]] = field(default_factory=dict)
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A prompt that holds what was promised.

    Attributes:
        fronts: texts in front of its user messages, by entry.
        parsed: the same, read.
        kept: user messages that stood as the engine had had them, something in front of them.
        replaced: annotations in the place of this request's blocks.
    """

    fronts: Mapping[int, str]
    parsed: Mapping[int, Front]
    kept: int
    replaced: int


@dataclass(frozen=True, slots=True)
class Case:
    """A request and what is known of it.

    Attributes:
        body: without ``context_blocks``; ``text`` and ``bare`` are the client's bytes with and without.
        memory: ``None`` without a conversation id.
        user: tag of its texts.
        mode: as the request says; ``off`` is all in full, in the client's order.
        strict: no error of ours is injected, so that the client is told all that it is promised.
    """

    body: Body
    text: str
    bare: str
    entries: Sequence[Entry]
    blocks: Sequence[Block]
    memory: Memory | None
    user: str
    mode: str = "on"
    strict: bool = True


def judge(case: Case, sent: bytes, told: Mapping[str, Any] | None) -> Judged:
    """Raises Violation. O(bytes)."""
    strangers = set(TAG.findall(sent.decode())) - {case.user}
    if strangers:
        raise Violation("users mixed", f"a prompt of {case.user} holds texts of {sorted(strangers)}")
    fronts = _fronts(case, sent)
    return _Prompt(case, fronts, told or {}).judge()


def _fronts(case: Case, sent: bytes) -> dict[int, str]:
    """What was put in front of which entry. Nothing else may have been changed (invariant 5)."""
    found = list(differences(read(case.bare.encode()), read(sent)))
    fronts: dict[int, str] = {}
    added = False
    for difference in found:
        entry = case.body.entry_at(difference.pointer)
        if entry is None or entry < 0 or not isinstance(case.entries[entry], Asks) or entry in fronts:
            raise Violation("changed", f"{difference.pointer} was changed")
        if isinstance(difference, Changed):
            if not difference.ours.endswith("\n\n" + difference.theirs):
                raise Violation("changed", f"the client's words at {difference.pointer} were changed")
            fronts[entry] = difference.ours.removesuffix("\n\n" + difference.theirs)
        else:
            added = True
            fronts[entry] = _added_text(case, difference, sent)
    if not found and not case.blocks and case.text == case.bare and sent != case.text.encode():
        raise Violation("changed", "a request to which nothing was added was written anew")
    if not added and case.strict:  # the last resort writes strings in its own way
        check_text(case.bare, sent.decode(), len(found))
    return fronts


def _added_text(case: Case, added: Added, sent: bytes) -> str:
    """A text part in front of the client's own texts and behind all tool results."""
    kind = "input_text" if case.body.api == "responses" else "text"
    part = added.value
    if not isinstance(part, dict) or list(part) != ["type", "text"] or part["type"] != kind:
        raise Violation("changed", f"{added.pointer} got {part!r}")
    kinds = [each.get("type") for each in at(read(sent), added.pointer)]
    if "tool_result" in kinds[added.place :] or kind in kinds[: added.place] or not part["text"].endswith("\n\n"):
        raise Violation("changed", f"text was put at the wrong place of {added.pointer}: {kinds}, {added.place}")
    return str(part["text"]).removesuffix("\n\n")


class _Prompt:
    """One prompt under examination."""

    def __init__(self, case: Case, fronts: dict[int, str], told: Mapping[str, Any]) -> None:
        self.case = case
        self.fronts = fronts
        self.told = told
        self.newest = max(i for i, entry in enumerate(case.entries) if isinstance(entry, Asks))
        self.in_loop = any(isinstance(entry, Says) for entry in case.entries[self.newest :])
        # Where only the past could not be recalled, the request is planned as one that stands alone.
        failed = not str(told.get("fallback", "restore")).startswith("restore")
        self.plain = failed or case.mode == "off"
        self.parsed: dict[int, Front] = {}
        self.labels: dict[str, Block] = {}
        self._recorded = self._of_memory()

    def judge(self) -> Judged:
        kept = self._frozen()
        for entry in sorted(self.fronts):
            if entry > self.newest:
                raise Violation("changed", "text stands in front of what is no user message")
            earlier = dict(self.labels)
            self.parsed[entry] = front = self._read(entry)
            self._resolve(front, earlier)
        replaced = self._newest()
        return Judged(self.fronts, self.parsed, kept, replaced)

    def _read(self, entry: int) -> Front:
        """A front that is the conversation's own, or that holds nothing but this request's blocks."""
        text = self.fronts[entry]
        if entry in self._recorded:
            return self._recorded[entry]
        front = parse_front(text, self.case.blocks) if entry == self.newest else None
        if front is None:
            raise Violation("evidence lost", f"what was put in front of entry {entry} is not what was sent: {text!r}")
        return front

    def _resolve(self, front: Front, earlier: Mapping[str, Block]) -> None:
        """Annotations name what stands in full before them; a label names one block."""
        for item in front.items:
            if isinstance(item, Stands):
                if item.label in self.labels:
                    raise Violation("evidence lost", f"two blocks are called {item.label}")
                self.labels[item.label] = item.block
            elif item.label not in (earlier if item.earlier_turn else self.labels.keys() - earlier.keys()):
                raise Violation("evidence lost", f"an annotation names {item.label}, which does not stand there")
        for label in front.order:
            if label not in self.labels:
                raise Violation("order", f"the order annotation names {label}, which does not stand there")

    # -- this request's blocks (invariants 1 to 3)

    def _newest(self) -> int:
        front = self.parsed.get(self.newest, NOTHING)
        blocks = self.case.blocks
        if self.in_loop and self.case.memory is not None and self._is_recorded(self.newest):
            missing = set(blocks) - set(self.labels.values())
            if missing:
                raise Violation("evidence lost", f"a tool loop lacks {len(missing)} of its blocks")
            self._check_labels()
            return 0
        if not self._is_recorded(self.newest) or blocks:
            shown = [self.labels[item.label] for item in front.items]
            if Counter(shown) != Counter(blocks):
                raise Violation("evidence lost", f"{len(blocks)} blocks came, {len(shown)} are shown, or others")
            self._check_labels()
            self._check_order(front)
        return sum(isinstance(item, Points) for item in front.items)

    def _check_labels(self) -> None:
        """The client learns which label each of its blocks has."""
        labels = self.told.get("labels")
        if labels is None and not self.case.strict:
            return
        if not self.case.blocks or (labels is None and "labels_at" in self.told) or self.told.get("fallback"):
            return
        named = [self.labels.get(label) for label in labels or ()]
        if named != list(self.case.blocks):
            raise Violation("wrong pairing", f"the labels {labels} are not those of the request's blocks")

    def _check_order(self, front: Front) -> None:
        if self.plain:
            stands = [item.block for item in front.items if isinstance(item, Stands)]
            if stands != list(self.case.blocks) or front.order:
                raise Violation("order", "the blocks do not stand plainly in the given order")
        if not self.told and not self.case.strict:
            return
        ranking = list(dict.fromkeys(self.told.get("labels") or ()))
        if front.order and list(front.order) != ranking[: len(front.order)]:
            raise Violation("wrong pairing", f"the order annotation says {front.order}, the client said {ranking}")
        if front.order and front.rest != (len(front.order) < len(ranking)):
            raise Violation("order", "the order annotation says wrongly whether there are others")

    # -- earlier turns (invariant 4)

    def _of_memory(self) -> dict[int, Front]:
        """The fronts that their messages have had before."""
        memory = self.case.memory
        if memory is None:
            return {}
        found = {}
        for entry, text in self.fronts.items():
            front = memory.fronts.get(chain(self.case.entries, entry), {}).get(text)
            if front is not None:
                found[entry] = front
        return found

    def _is_recorded(self, entry: int) -> bool:
        return entry in self._recorded

    def _frozen(self) -> int:
        """How many messages stand as the engine has had them."""
        memory, entries = self.case.memory, tuple(self.case.entries)
        for entry in self.fronts:
            if entry != self.newest and not self._is_recorded(entry):
                raise Violation("frozen prefix", f"entry {entry} got a text that it never had")
        if memory is None:
            return 0
        if self.told.get("ambiguous") and not memory.doubt and not self._has_branches(memory):
            raise Violation("frozen prefix", "the client is told of branches that it never made")
        told_otherwise = self.told.get("ambiguous") or self.told.get("fallback") or memory.doubt
        for end in range(len(entries), 0, -1):
            path = memory.paths.get(entries[:end])
            if path is None:
                continue
            users = [i for i, entry in enumerate(entries[:end]) if isinstance(entry, Asks)]
            stands = tuple(self.fronts.get(i, "") for i in users)
            if stands not in path and not told_otherwise:
                raise Violation("frozen prefix", f"the first {end} entries were sent as {path}, and now as {stands}")
            return sum(map(bool, stands)) if stands in path else 0
        return 0

    def _has_branches(self, memory: Memory) -> bool:
        entries = self.case.entries
        users = (i for i, entry in enumerate(entries) if isinstance(entry, Asks))
        return any(len(memory.branches.get(chain(entries, i), ())) > 1 for i in users)


def chain(entries: Sequence[Entry], end: int) -> tuple[Entry, ...]:
    """The user and tool messages up to and including one. A lone text part is the same as its text."""
    kept = (entry for entry in entries[: end + 1] if not isinstance(entry, Says))
    return tuple(Asks(entry.text) if isinstance(entry, Asks) and not entry.image else entry for entry in kept)


def remember(case: Case, judged: Judged, says: Says) -> None:
    """The engine has answered."""
    memory = case.memory
    if memory is None:
        return
    entries = tuple(case.entries)
    users = [i for i, entry in enumerate(entries) if isinstance(entry, Asks)]
    for entry, front in judged.parsed.items():
        memory.fronts.setdefault(chain(entries, entry), {})[judged.fronts[entry]] = front
    stands = tuple(judged.fronts.get(i, "") for i in users)
    memory.paths.setdefault((*entries, says), set()).add(stands)
    for count, i in enumerate(users, 1):
        memory.branches.setdefault(chain(entries, i), set()).add(stands[:count])
