"""The member ``context_blocks`` of a body: a list of strings or of objects, the most relevant first. Pure.

An object has ``text`` and optional ``id`` and ``title``. ``group`` (a name; its blocks stand next to each other) and
``pin`` (``first`` or ``last``) say what may not be moved. In Python a block may be a ``ContextBlock``, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import kind_of

FIELD: Final = "context_blocks"
BlockOf: TypeAlias = Callable[..., ContextBlock]
_BLOCK_KEYS: Final = ("text", "id", "title", "group", "pin")


Block: TypeAlias = ContextBlock | str | Mapping[str, Any]
"""A block with a text, a text, or an object with ``text`` and optional ``id``, ``title``, ``group`` and ``pin``."""


class Given(NamedTuple):
    """Blocks as a program gave them, and what it demands of their order."""

    blocks: tuple[ContextBlock, ...]
    constraints: Constraints = UNCONSTRAINED


def given_blocks(given: Iterable[Block], field: str = FIELD) -> Given:
    """Blocks given in Python, in any of the forms. O(blocks).

    Args:
        field: the argument's name, for errors.

    Raises:
        InvalidRequestError: blocks that cannot be used; names the element (``blocks[2].text``).
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequestError(field, f"is one {type(given).__name__}", "give a list of blocks")
    elements = [dict(element) if isinstance(element, Mapping) else element for element in given]
    blocks = [
        element if isinstance(element, ContextBlock) else _block(f"{field}[{i}]", element, ContextBlock)
        for i, element in enumerate(elements)
    ]
    return Given(tuple(blocks), read_constraints(elements, field))


def read_blocks(given: Any, block_of: BlockOf = ContextBlock) -> tuple[ContextBlock, ...]:
    """The value of ``context_blocks``; ``null`` is no blocks. O(blocks).

    Args:
        block_of: makes a block of its text, id and title, or knows it.

    Raises:
        InvalidRequestError: blocks that cannot be used; names the element as the client would write it
            (``context_blocks[2].text``).
    """
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequestError(FIELD, f"is {kind_of(given)}", "give a list of strings or of objects with text")
    return tuple(
        [
            block_of(element) if type(element) is str and element else _block(f"{FIELD}[{i}]", element, block_of)
            for i, element in enumerate(given)
        ]
    )


def _block(field: str, element: Any, block_of: BlockOf) -> ContextBlock:
    if isinstance(element, str):
        return block_of(_text(field, element))
    if not isinstance(element, dict):
        raise InvalidRequestError(field, f"is {kind_of(element)}", "give a string, or an object with text")
    for key in element:
        if key not in _BLOCK_KEYS:
            raise InvalidRequestError(f"{field}.{key}", "is not a known key", f"use only {', '.join(_BLOCK_KEYS)}")
    if "text" not in element:
        raise InvalidRequestError(f"{field}.text", "is missing", "give the block's text as a string")
    return block_of(_text(f"{field}.text", element["text"]), _id(field, element), _title(field, element))


def read_constraints(elements: Sequence[Any], field: str = FIELD) -> Constraints:
    """What the elements say of their order; each is a block that can be used. Raises InvalidRequestError."""
    if set(map(type, elements)) <= {str}:
        return UNCONSTRAINED
    groups: dict[str, list[int]] = {}
    pins: dict[str, int] = {}
    for i, element in enumerate(elements):
        if not isinstance(element, dict):
            continue
        name, pin = element.get("group"), element.get("pin")
        if name is not None:
            _add_to_group(field, groups, name, i)
        if pin is not None:
            _add_pin(field, pins, pin, i)
    if not groups and not pins:
        return UNCONSTRAINED
    constraints = Constraints(tuple(map(tuple, groups.values())), None, pins.get("first"), pins.get("last"))
    try:
        constraints.units(len(elements))
    except InvalidRequestError as error:
        pinned = pins[error.field.rpartition(".")[2]]
        raise InvalidRequestError(f"{field}[{pinned}].pin", error.reason, error.remedy) from None
    return constraints


def _add_to_group(field: str, groups: dict[str, list[int]], name: Any, position: int) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            f"{field}[{position}].group",
            f"is {kind_of(name) if name != '' else 'empty'}",
            "give a name, or leave it out",
        )
    members = groups.setdefault(name, [])
    if members and members[-1] != position - 1:
        raise InvalidRequestError(
            f"{field}[{position}].group",
            f"is {name!r}, as that of {field}[{members[-1]}], which does not stand right before it",
            "put the blocks of a group next to each other, in the order in which they are to stand",
        )
    members.append(position)


def _add_pin(field: str, pins: dict[str, int], pin: Any, position: int) -> None:
    own = f"{field}[{position}].pin"
    if pin not in ("first", "last"):
        what = json.dumps(pin, default=kind_of)
        raise InvalidRequestError(own, f"is {what}", 'give "first" or "last", or leave it out')
    if pins.setdefault(pin, position) != position:
        raise InvalidRequestError(own, f"is {pin!r}, as that of {field}[{pins[pin]}]", "pin one block to each end")


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(field, f"is {kind_of(value)}", "give the block's text as a string")
    if not value:
        raise InvalidRequestError(field, "is empty", "give the block's text, or leave the element out")
    return value


def _id(field: str, element: Mapping[str, Any]) -> int | str | None:
    value = element.get("id")
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise InvalidRequestError(f"{field}.id", f"is {kind_of(value)}", "give a string or an integer, or leave it out")
    return value


def _title(field: str, element: Mapping[str, Any]) -> str | None:
    value = element.get("title")
    if not isinstance(value, str | None):
        raise InvalidRequestError(f"{field}.title", f"is {kind_of(value)}", "give a string, or leave it out")
    if value and len(value.splitlines()) > 1:
        raise InvalidRequestError(f"{field}.title", "has several lines", "give one line; put the rest into the text")
    return value or None


def plain_text(blocks: Iterable[ContextBlock], first_number: int = 1) -> str:
    """The blocks in the given order, all in full, labelled from ``first_number``: what is sent when all else fails.

    >>> print(plain_text([ContextBlock("Rome is in Italy."), ContextBlock("It is old.", title="Age")]))
    [Doc 1]
    Rome is in Italy.
    <BLANKLINE>
    [Doc 2] Age
    It is old.
    """
    paragraphs = []
    for number, block in enumerate(blocks, first_number):
        label = DEFAULT_TEMPLATES.label.format(name=DEFAULT_TEMPLATES.name.format(number=number))
        head = f"{label} {block.title}" if block.title else label
        paragraphs.append(f"{head}\n{block.text if block.text is not None else str(block.id)}")
    return "\n\n".join(paragraphs)
