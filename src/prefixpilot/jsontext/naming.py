"""How a client would write where a value stands, and what kind of value it is."""

from __future__ import annotations

from typing import Any, Final

from prefixpilot.jsontext.edits import Pointer

_KINDS: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def written(pointer: Pointer) -> str:
    """A pointer in the notation of JSON paths.

    >>> written(("messages", 3, "content"))
    'messages[3].content'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in pointer).removeprefix(".")


def kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    return _KINDS.get(type(value), type(value).__name__)
