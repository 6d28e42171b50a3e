"""What can be done to a JSON text. Pointers and indices are those of the text before any edit.

Edits of one text work together: an array's elements may be edited, permuted and have others put between them. What
cannot be meant is an error: two texts for one string, an edit inside of what another takes away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from prefixpilot.errors import InvalidInputError
from prefixpilot.jsontext.escapes import all_escaped
from prefixpilot.jsontext.layout import Element, Layout

Pointer: TypeAlias = tuple[str | int, ...]
"""Where a value stands: member names and array indices, outermost first. Of a repeated key the last one counts."""


class SetText(NamedTuple):
    """The string there becomes ``text``. Where it begins or ends with all of the old string, that stays as written.

    Attributes:
        parts: what ``text`` is made of, joined, where the old string is at the end of the last one: then they are
            escaped one by one. Empty if nobody says.
    """

    pointer: Pointer
    text: str
    parts: Sequence[str] = ()


class Permute(NamedTuple):
    """Element ``order[i]`` of the array there comes to stand at ``i``."""

    pointer: Pointer
    order: Sequence[int]


class SetMember(NamedTuple):
    """The object there gets a member: in the place of the one with that key, or as the last."""

    pointer: Pointer
    key: str
    value: Any


class RemoveMember(NamedTuple):
    """The object there loses each member with that key, and the comma that belongs to it; none is no error."""

    pointer: Pointer
    key: str


class InsertElement(NamedTuple):
    """The array there gets ``value`` in front of the element that stands at index ``at`` once it is permuted.

    ``at`` may be its length. Several at one index stand in the order given.
    """

    pointer: Pointer
    at: int
    value: Any


Edit: TypeAlias = SetText | Permute | SetMember | RemoveMember | InsertElement

Escape: TypeAlias = Callable[[Sequence[str]], Sequence[str] | None]
"""Texts as they stand between the quotes of a JSON string, as :func:`prefixpilot.jsontext.escapes.all_escaped`."""


@dataclass(slots=True)
class _Node:
    """The edits of one value, and of the values in it."""

    children: dict[str | int, _Node] = field(default_factory=dict)
    text: str | None = None
    parts: Sequence[str] = ()
    order: Sequence[int] | None = None
    members: dict[str, Any] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    inserted: dict[int, list[Any]] = field(default_factory=dict)


def edited(layout: Layout, place: Element, edits: Iterable[Edit], escape: Escape = all_escaped) -> list[str]:
    """The pieces of the value at ``place`` with all ``edits`` done. O(length of the containers on the way).

    Args:
        escape: of long texts; one that is faster.

    Raises:
        InvalidInputError: an edit names what is not there or what is of another kind, or contradicts another one.
    """
    writer = _Writer(layout, escape)
    writer.value(*place, _tree(edits), ())
    return writer.pieces


def _tree(edits: Iterable[Edit]) -> _Node:
    root = _Node()
    for edit in edits:
        node = root
        for step in edit.pointer:
            child = node.children.get(step)
            if child is None:
                child = node.children[step] = _Node()
            node = child
        _add(node, edit)
    return root


def _add(node: _Node, edit: Edit) -> None:
    match edit:
        case SetText():
            _check(node.text is None, edit.pointer, "gets two texts")
            node.text, node.parts = edit.text, edit.parts
        case Permute():
            _check(node.order is None, edit.pointer, "is permuted twice")
            node.order = edit.order
        case SetMember():
            _check(edit.key not in node.members, edit.pointer, f"gets the member {edit.key!r} twice")
            node.members[edit.key] = edit.value
        case RemoveMember():
            node.removed.add(edit.key)
        case InsertElement():
            node.inserted.setdefault(edit.at, []).append(edit.value)


class _Writer:
    """Writes values with their edits in them.

    Attributes:
        pieces: of what is written, joined once: a long text is not copied at each level.
    """

    def __init__(self, layout: Layout, escape: Escape) -> None:
        self.pieces: list[str] = []
        self._layout = layout
        self._escape = escape
        self._text = layout.text

    def value(self, start: int, end: int, node: _Node, pointer: Pointer) -> None:
        """Write the value that stands from ``start`` to ``end``, which ``pointer`` names."""
        kind = self._text[start]
        if kind == "{":
            self._object(start, end, node, pointer)
        elif kind == "[":
            self._array(start, end, node, pointer)
        else:
            _check(node.order is None and not node.inserted, pointer, "is no array")
            _check(not node.members and not node.removed, pointer, "is no object")
            self._plain(start, end, node, pointer)

    def _plain(self, start: int, end: int, node: _Node, pointer: Pointer) -> None:
        if node.text is None:
            _check(not node.children, pointer, "holds no values")
            self.pieces.append(self._text[start:end])
            return
        _check(self._text[start] == '"' and not node.children, pointer, "is no string")
        self._string(self._text[start + 1 : end - 1], node.text, node.parts)

    def _string(self, written: str, new: str, parts: Sequence[str]) -> None:
        old: str = json.loads(f'"{written}"') if "\\" in written else written
        if parts and parts[-1].endswith(old):
            before = self._characters((*parts[:-1], parts[-1][: len(parts[-1]) - len(old)]), written)
            self.pieces += ('"', *before, written, '"')
        elif new.endswith(old):
            self.pieces += ('"', *self._characters((new[: len(new) - len(old)],), written), written, '"')
        elif new.startswith(old):
            self.pieces += ('"', written, *self._characters((new[len(old) :],), written), '"')
        else:
            self.pieces += ('"', *self._characters((new,), written), '"')

    def _object(self, start: int, end: int, node: _Node, pointer: Pointer) -> None:
        _check(node.order is None and not node.inserted, pointer, "is no array")
        _check(node.text is None, pointer, "is no string")
        text, pieces = self._text, self.pieces
        members = self._layout.members(start)
        last = {member.key: place for place, member in enumerate(members)}
        self._check_members(node, last, pointer)
        pieces.append(text[start : members[0].start if members else end - 1])
        none_yet = True
        for place, member in enumerate(members):
            key = member.key
            if key in node.removed:
                continue
            begun = member.start if none_yet else members[place - 1].end
            none_yet = False
            if place != last[key] or not (key in node.members or key in node.children):
                pieces.append(text[begun : member.end])
                continue
            pieces.append(text[begun : member.value_start])
            if key in node.members:
                pieces.append(self._json(node.members[key]))
            else:
                self.value(member.value_start, member.end, node.children[key], (*pointer, key))
        for key, value in node.members.items():
            if key not in last:
                pieces.append(f"{'' if none_yet else ', '}{self._json(key)}: {self._json(value)}")
                none_yet = False
        pieces.append(text[members[-1].end if members else end - 1 : end])

    def _check_members(self, node: _Node, last: dict[str, int], pointer: Pointer) -> None:
        for name in node.members:
            _check(name not in node.removed, pointer, f"has its member {name!r} set and removed")
        for key in node.children:
            gone = key not in last or key in node.members or key in node.removed
            _check(not gone, pointer, f"has no member {key!r} left to edit")

    def _array(self, start: int, end: int, node: _Node, pointer: Pointer) -> None:
        _check(not node.members and not node.removed, pointer, "is no object")
        _check(node.text is None, pointer, "is no string")
        text, pieces = self._text, self.pieces
        elements = self._layout.elements(start)
        count = len(elements)
        order = range(count) if node.order is None else node.order
        _check(sorted(order) == list(range(count)), pointer, f"has {count} elements, and an order of others")
        for index in (*node.children, *node.inserted):
            known = isinstance(index, int) and 0 <= index < count + (index in node.inserted)
            _check(known, pointer, f"has {count} elements, and none at {index!r}")
        pieces.append(text[start : elements[0].start if elements else end - 1])
        for place, source in enumerate(order):
            if place:
                pieces.append(text[elements[place - 1].end : elements[place].start])
            pieces += [f"{self._json(value)}, " for value in node.inserted.get(place, ())]
            element, child = elements[source], node.children.get(source)
            if child is None:
                pieces.append(text[element.start : element.end])
            else:
                self.value(*element, child, (*pointer, source))
        for place, value in enumerate(node.inserted.get(count, ()), count):
            pieces.append(f"{', ' if place else ''}{self._json(value)}")
        pieces.append(text[elements[-1].end if elements else end - 1 : end])

    def _characters(self, parts: Sequence[str], written: str) -> Sequence[str]:
        """What is between the quotes of a JSON string for all of them together: beyond ASCII as the client writes it,
        plain or escaped."""
        if not written.isascii() or all(map(str.isascii, parts)):
            plain = self._escape(parts)
            if plain is not None:
                return plain
        return [json.dumps(part)[1:-1] for part in parts]

    def _json(self, value: Any) -> str:
        """A value in ASCII. A part of a message is an object whose text is long."""
        if type(value) is str:
            return f'"{self._characters((value,), "")[0]}"'
        if type(value) is dict and all(type(key) is str for key in value):
            return "{" + ", ".join(f"{json.dumps(key)}: {self._json(each)}" for key, each in value.items()) + "}"
        return json.dumps(value, allow_nan=False)


def _check(holds: bool, pointer: Pointer, reason: str) -> None:
    if not holds:
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in pointer)
        raise InvalidInputError(f"edits at ${where}", reason, "make edits of the text as it was read")
