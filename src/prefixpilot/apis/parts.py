"""Strings and lists of parts: what all APIs have in common inside of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from prefixpilot.apis.base import Pointer, Role, Segment
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import Edit, InsertElement, SetText, kind_of, written

TEXT_TYPES: Final = ("text", "input_text", "output_text")


class Text(NamedTuple):
    """One string of a message that the model reads as text, and where the client set a cache mark on it."""

    pointer: Pointer
    text: str
    ends_prefix: bool = False


def texts_of(content: Any, pointer: Pointer) -> list[Text]:
    """The texts of content that is a string or a list of parts; images, audio, files and the like have none.

    A mark on a part without text ends the prefix behind the text before it.
    """
    if isinstance(content, str):
        return [Text(pointer, content)]
    texts: list[Text] = []
    for i, part in objects(content):
        if part.get("type") in TEXT_TYPES and isinstance(part.get("text"), str):
            texts.append(Text((*pointer, i, "text"), part["text"], is_marked(part)))
        elif is_marked(part):
            mark_last(texts)
    return texts


def mark_last(texts: list[Text]) -> None:
    """The prefix ends behind the last of the texts, if there is one."""
    texts[-1:] = [text._replace(ends_prefix=True) for text in texts[-1:]]


def is_marked(part: Mapping[str, Any]) -> bool:
    """Whether the client set a cache mark."""
    return bool(part.get("cache_control"))


def segments_of(texts: list[Text], message: int, role: Role, call_id: str | None = None) -> tuple[Segment, ...]:
    """The texts of a message, whose words are all ``role``'s; those of an assistant are sealed."""
    sealed = role == "assistant"
    return tuple(Segment(at, text, role, message, sealed, ends, call_id) for at, text, ends in texts)


def text_in_front(content: Any, pointer: Pointer, text: str, kind: str = "text", at: int = 0) -> Edit:
    """See :meth:`~prefixpilot.apis.base.Api.in_front`; a new part is of ``kind`` and goes in front of part ``at``."""
    if isinstance(content, str):
        return SetText(pointer, f"{text}\n\n{content}")
    if isinstance(content, list):
        return InsertElement(pointer, at, {"type": kind, "text": f"{text}\n\n"})
    raise InvalidRequestError(
        written(pointer),
        f"is {kind_of(content)}, so the context blocks cannot be put in front of it",
        "give a string or a list of content parts",
    )


def unmarked(value: Any) -> Any:
    """A message without the client's cache marks, which move from turn to turn. O(parts)."""
    if not isinstance(value, dict):
        return value
    message = {key: each for key, each in value.items() if key != "cache_control"}
    if isinstance(message.get("content"), list):
        message["content"] = [unmarked(part) for part in message["content"]]
    return message


def objects(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their indices; of anything else none."""
    if isinstance(value, list):
        yield from ((i, element) for i, element in enumerate(value) if isinstance(element, dict))


def string(value: Any) -> str:
    """A string, or the empty one in the place of anything else."""
    return value if isinstance(value, str) else ""


def canonical(value: Any) -> str:
    """Compact JSON with sorted keys; a string is JSON text already."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
