"""The last resort: the blocks in the given order, in full, by code that shares nothing with the ordinary way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prefixpilot.core import ContextBlock
from prefixpilot.prompts.blocks import FIELD, plain_text


def plain_body(body: bytes, api: str, frozen: Mapping[int, str], first_number: int = 1) -> bytes:
    """A body without ``context_blocks``; their plain text stands in front of the newest user message.

    Args:
        api: name of the API it is of.
        frozen: text to put in front of earlier messages, by index in reading order: turns already sent.
        first_number: of the labels.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, RecursionError: the body is not such a request, or has a
            key twice, of which JSON does not say which one counts.
    """
    document = json.loads(
        body, parse_int=_Number, parse_float=_Number, parse_constant=_Number.refuse, object_pairs_hook=_object
    )
    blocks = [_block(element) for element in document.pop(FIELD, None) or ()]
    places = list(_PLACES[api](document))
    texts = dict(frozen)
    if blocks:
        newest = max(i for i, place in enumerate(places) if place.is_user)
        texts[newest] = "\n\n".join(filter(None, (plain_text(blocks, first_number), texts.get(newest))))
    for i, text in texts.items():
        holder, key, part, _ = places[i]
        holder[key] = _in_front(text, holder[key], part)
    return _written(document).encode("ascii")


class _Place(NamedTuple):
    """Where the content of a message stands, and the type of its text parts."""

    holder: Any
    key: str
    part: str
    is_user: bool


def _chat(document: Any) -> Iterator[_Place]:
    for message in document["messages"]:
        yield _Place(message, "content", "text", _is_user(message))


def _completions(document: Any) -> Iterator[_Place]:
    yield _Place(document, "prompt", "text", True)


def _responses(document: Any) -> Iterator[_Place]:
    if type(document.get("instructions")) is str:
        yield _Place(document, "instructions", "input_text", False)
    if type(document["input"]) is str:
        yield _Place(document, "input", "input_text", True)
        return
    for item in document["input"]:
        is_message = isinstance(item, dict) and item.get("type") in (None, "", "message")
        yield _Place(item, "content", "input_text", is_message and _is_user(item))


def _messages(document: Any) -> Iterator[_Place]:
    if isinstance(document.get("system"), str | list):
        yield _Place(document, "system", "text", False)
    for message in document["messages"]:
        yield _Place(message, "content", "text", _is_user(message) and not _has_only_results(message))


_PLACES = {"chat": _chat, "completions": _completions, "responses": _responses, "messages": _messages}


def _is_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


def _has_only_results(message: Any) -> bool:
    content = message.get("content")
    return type(content) is list and bool(content) and all(map(_is_result, content))


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


class _Number(str):
    """A number as the client wrote it."""

    @staticmethod
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a key stands twice")
    return document


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_written(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)


def _block(element: Any) -> ContextBlock:
    if type(element) is str:
        return ContextBlock(text=element)
    return ContextBlock(text=element["text"], title=element.get("title"))


def _in_front(text: str, content: Any, part: str) -> Any:
    """Tool results stay the first parts of a message."""
    if type(content) is str:
        return f"{text}\n\n{content}"
    if type(content) is not list:
        raise TypeError("the content is no list of parts")
    at = _results(content)
    return [*content[:at], {"type": part, "text": f"{text}\n\n"}, *content[at:]]


def _results(content: list[Any]) -> int:
    """How many parts stand before the last tool result, itself included."""
    return max((i + 1 for i, part in enumerate(content) if _is_result(part)), default=0)
