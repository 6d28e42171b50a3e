"""A JSON object, read once: its value, and its text to put edits into.

So numbers keep their digits, strings their escapes, objects their order and their repeated keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from prefixpilot.jsontext.edits import Edit, Escape, Pointer, edited
from prefixpilot.jsontext.escapes import all_escaped
from prefixpilot.jsontext.known import KnownElements, Scan
from prefixpilot.jsontext.layout import Element, Layout, Member, end_of_space

_BYTE_ORDER_MARK: Final = "\ufeff"


class UnreadableError(ValueError):
    """Bytes that are no JSON object, or that can be read in two ways. The message says why."""


class NoObjectError(UnreadableError):
    """JSON, but no object: it has no members that could be missed."""


class JsonText:
    """A JSON object as the text it came in. Not changed once it is read.

    Attributes:
        value: the object. Of a repeated key it has the last; a number that no ``int`` or ``float`` holds is its
            literal.
    """

    def __init__(
        self,
        text: str,
        place: Element,
        value: dict[str, Any],
        repeated: Iterable[tuple[Any, str]],
        members: tuple[Member, ...] | None = None,
    ) -> None:
        """For :meth:`read`: ``value`` stands at ``place``; ``repeated`` are objects and a key that stands twice; where
        the ``members`` stand, if that is known."""
        self.value = value
        self._place = place
        self._layout = Layout(text)
        if members is not None:
            self._layout.know(place.start, members)
        self._repeated = tuple(repeated)

    @classmethod
    def read(cls, data: bytes, known: KnownElements | None = None) -> JsonText:
        """Read UTF-8, with or without a byte order mark. O(bytes).

        Args:
            known: elements that may have been read before; what they say is not read again.

        >>> JsonText.read(b'{"n": 1.50, "q": "Why?"}').edited([SetText(("q",), "How?")])
        b'{"n": 1.50, "q": "How?"}'

        Raises:
            UnreadableError: it cannot be read.
        """
        try:
            return _read(data.decode("utf-8", "surrogatepass"), known)
        except UnreadableError:
            raise
        except UnicodeDecodeError as error:
            raise UnreadableError(f"is not UTF-8 (byte {error.start})") from None
        except RecursionError:
            raise UnreadableError("is nested too deeply") from None
        except ValueError as error:
            raise UnreadableError(f"is not JSON ({error})") from None

    def edited(self, edits: Iterable[Edit], escape: Escape = all_escaped) -> bytes:
        """The text with ``edits`` done; without any, the bytes that were read. O(bytes).

        Args:
            escape: of long texts; one that is faster than ours.

        Raises:
            InvalidInputError: an edit that cannot be done (see :mod:`prefixpilot.jsontext.edits`).
        """
        text, edits = self._layout.text, tuple(edits)
        if edits:
            pieces = edited(self._layout, self._place, edits, escape)
            text = "".join((text[: self._place.start], *pieces, text[self._place.end :]))
        return text.encode("utf-8", "surrogatepass")

    def repeats(self) -> Iterator[Pointer]:
        """Members whose key stands more than once in its object. O(1) if there is none, else O(bytes)."""
        if not self._repeated:
            return
        keys: dict[int, set[str]] = {}
        for holder, key in self._repeated:
            keys.setdefault(id(holder), set()).add(key)
        waiting: list[tuple[Pointer, Any]] = [((), self.value)]
        while waiting:
            pointer, value = waiting.pop()
            yield from ((*pointer, key) for key in sorted(keys.get(id(value), ())))
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            waiting += [((*pointer, step), each) for step, each in items]


def _read(text: str, known: KnownElements | None) -> JsonText:
    repeated: list[tuple[Any, str]] = []

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend((value, key) for key in value if keys.count(key) > 1)
        return value

    decoder = json.JSONDecoder(
        object_pairs_hook=to_object, parse_int=_int, parse_float=_float, parse_constant=_refuse_constant
    )
    start = end_of_space(text, text.startswith(_BYTE_ORDER_MARK))
    scan = decoder.scan_once  # type: ignore[attr-defined]  # what raw_decode calls: a value, and where it ends

    def value_of(key: Any, at: int) -> tuple[Any, int]:
        if known is not None and key in known.members and text[at] == "[":
            return known.array(text, at, scan, lambda: not repeated)
        value, end = scan(text, at)
        return value, end

    read = _top(text, start, scan, value_of) if text.startswith("{", start) else None
    if read is not None and end_of_space(text, read.end) == len(text):
        value = to_object([(member.key, each) for member, each in zip(read.members, read.values, strict=True)])
        return JsonText(text, Element(start, read.end), value, repeated, read.members)
    repeated.clear()
    whole, end = decoder.raw_decode(text, start)
    if end_of_space(text, end) != len(text):
        raise ValueError(f"extra data at character {end}")
    if not isinstance(whole, dict):
        raise NoObjectError("is no JSON object")
    return JsonText(text, Element(start, end), whole, repeated)


class _Top(NamedTuple):
    """The object of a body: its members and their values, in parallel, and where it ends."""

    members: tuple[Member, ...]
    values: list[Any]
    end: int


def _top(text: str, start: int, scan: Scan, value_of: Callable[[str, int], tuple[Any, int]]) -> _Top | None:
    """The object that begins at ``start``, member by member, so that it is known where each stands; ``None`` if it has
    no members, or is broken somewhere. Raises what ``value_of`` raises, which reads the value of a key that begins
    there, and says where it ends."""
    members, values = [], []
    at = end_of_space(text, start + 1)
    try:
        while text[at] == '"':
            key, end = scan(text, at)
            colon = end_of_space(text, end)
            value_start = end_of_space(text, colon + 1)
            value, end = value_of(key, value_start)
            after = end_of_space(text, end)
            if text[colon] != ":" or text[after] not in ",}":
                return None
            members.append(Member(key, at, value_start, end))
            values.append(value)
            if text[after] == "}":
                return _Top(tuple(members), values, after + 1)
            at = end_of_space(text, after + 1)
    except (StopIteration, IndexError, json.JSONDecodeError):
        return None
    return None


def _int(literal: str) -> int | str:
    try:
        return int(literal)
    except ValueError:  # more digits than Python converts
        return literal


def _float(literal: str) -> float | str:
    value = float(literal)
    return literal if value in (float("inf"), float("-inf")) else value


def _refuse_constant(constant: str) -> float:
    raise UnreadableError(f"has {constant}, which is no JSON")
