"""The last resort: the blocks in the given order, in full, by code that shares nothing with the ordinary way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prefixpilot.core import ContextBlock
from prefixpilot.prompts.chat import FIELD, plain_text


def plain_body(body: bytes, frozen: Mapping[int, str], first_number: int = 1) -> bytes:
    """A chat body without ``context_blocks``; their plain text stands in front of the newest user message.

    Args:
        frozen: text to put in front of earlier messages, by index: turns already sent.
        first_number: of the labels.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, RecursionError: the body is not such a request, or has a
            key twice, of which JSON does not say which one counts.
    """
    document = json.loads(
        body, parse_int=_Number, parse_float=_Number, parse_constant=_Number.refuse, object_pairs_hook=_object
    )
    blocks = [_block(element) for element in document.pop(FIELD, None) or ()]
    messages = document["messages"]
    texts = dict(frozen)
    if blocks:
        newest = max(i for i, message in enumerate(messages) if message.get("role") == "user")
        texts[newest] = "\n\n".join(filter(None, (plain_text(blocks, first_number), texts.get(newest))))
    for i, text in texts.items():
        messages[i]["content"] = _in_front(text, messages[i]["content"])
    return _written(document).encode("ascii")


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


def _in_front(text: str, content: Any) -> Any:
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    return [{"type": "text", "text": f"{text}\n\n"}, *content]
