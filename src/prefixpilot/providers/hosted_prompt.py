"""A request as a hosted provider's cache sees it: content blocks in reading order, with the marks that stand at them.

Messages bodies are read part by part, because the provider looks back over parts. In the other APIs long texts are cut
into pieces: there a prefix may end anywhere, and a piece is how finely we tell where two prompts part. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prefixpilot.apis.base import Message, Pointer, Prompt, digest
from prefixpilot.providers.breakpoints import census
from prefixpilot.providers.hosted_cache import HostedBlock
from prefixpilot.providers.limits import CacheLimits

PIECE_CHARS: Final = 512
"""About 128 tokens: OpenAI's increment."""
MARK: Final = "prompt_cache_breakpoint"
"""On a content part: OpenAI's explicit breakpoint."""
_ANTHROPIC_MARK: Final = "cache_control"

Count = Callable[[str], int]


def hosted_blocks(prompt: Prompt, limits: CacheLimits, count: Count) -> tuple[HostedBlock, ...]:
    """The blocks of a prompt, as it is sent. O(bytes).

    Marks are set only where the provider reads them; a TTL that it does not have counts as its default one.

    Args:
        count: tokens of a text, estimated. Images and other data count as nothing.
    """
    if prompt.api == "messages":
        return tuple(_parts(prompt.body, limits, count))
    return tuple(_pieces(prompt, limits, count))


def _known(ttl: Any, limits: CacheLimits) -> str | None:
    """A TTL that the provider has: the default one for any other. ``None`` where it names none at all."""
    return ttl if isinstance(ttl, str) and ttl in dict(limits.lifetimes) else limits.default


# -- Messages


def _parts(body: Mapping[str, Any], limits: CacheLimits, count: Count) -> Iterator[HostedBlock]:
    """Tools, parts of the system text, parts of the messages. A string is the same as one text part."""
    marks = {mark.pointer[: _DEPTH[str(mark.pointer[0])]]: _known(mark.ttl, limits) for mark in census(body).marks}
    found = [
        HostedBlock(digest([role, _unmarked(part)]), count(_words(part)), marks.get(pointer))
        for pointer, role, part in _all_parts(body)
    ]
    control = body.get(_ANTHROPIC_MARK)
    if control is not None and found and found[-1].mark is None:
        ttl = control.get("ttl") if isinstance(control, dict) else None
        found[-1] = found[-1]._replace(mark=_known(ttl, limits))
    yield from found


_DEPTH: Final = {"tools": 2, "system": 2, "messages": 4}
"""Length of the pointer of a part: a mark further inside stands at the end of that part."""


def _all_parts(body: Mapping[str, Any]) -> Iterator[tuple[Pointer, str, Any]]:
    tools, messages = body.get("tools"), body.get("messages")
    for i, tool in enumerate(tools if isinstance(tools, list) else ()):
        yield ("tools", i), "tool", tool
    yield from _of_content(("system",), "system", body.get("system"))
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            yield from _of_content(("messages", i, "content"), str(message.get("role")), message.get("content"))


def _of_content(pointer: Pointer, role: str, content: Any) -> Iterator[tuple[Pointer, str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for i, part in enumerate(parts if isinstance(parts, list) else ()):
        yield (*pointer, i), role, part


def _unmarked(value: Any) -> Any:
    """Without cache marks: they are no part of the prompt."""
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != _ANTHROPIC_MARK}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def _words(part: Any) -> str:
    """What of a part the model reads as text: all of a tool, of others their texts and the arguments of calls."""
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    if "input_schema" in part:
        return json.dumps(_unmarked(part), ensure_ascii=False)
    inner = [part.get("text", ""), part.get("thinking", "")]
    if "input" in part:
        inner.append(json.dumps(part["input"], ensure_ascii=False))
    content = part.get("content")
    inner += [content] if isinstance(content, str) else map(_words, content if isinstance(content, list) else ())
    return "".join(text for text in inner if isinstance(text, str))


# -- all others


def _pieces(prompt: Prompt, limits: CacheLimits, count: Count) -> Iterator[HostedBlock]:
    """Tools, then of each message what is no text, and its texts piece by piece."""
    retention = prompt.body.get("prompt_cache_retention")
    kept = _known(retention, limits) if limits.everywhere and isinstance(retention, str) else None
    tools = prompt.body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        yield HostedBlock(digest(["tool", tool]), count(json.dumps(tool, ensure_ascii=False)), kept)
    implicit = _implicit(prompt, limits)
    for number, message in enumerate(prompt.messages):
        blocks = [block._replace(mark=kept or block.mark) for block in _of_message(prompt, message, limits, count)]
        if number == implicit:
            blocks[-1] = blocks[-1]._replace(mark=limits.default)
        yield from blocks


def _implicit(prompt: Prompt, limits: CacheLimits) -> int | None:
    """The message at whose end the provider sets a mark of its own."""
    if limits.max_breakpoints is None or not limits.ends:
        return None
    options = prompt.body.get("prompt_cache_options")
    if isinstance(options, dict) and options.get("mode") == "explicit":
        return None
    newest = (i for i, message in enumerate(prompt.messages) if message.role in ("user", "tool"))
    return max(newest, default=None)


def _of_message(prompt: Prompt, message: Message, limits: CacheLimits, count: Count) -> Iterator[HostedBlock]:
    calls = [[call.name, call.arguments] for call in message.calls]
    head = json.dumps(calls, ensure_ascii=False) if calls else ""
    yield HostedBlock(digest([message.role, calls, _no_texts(message)]), count(head) if head else 0)
    for segment in message.segments:
        text = segment.text
        ends = [*range(PIECE_CHARS, len(text), PIECE_CHARS), len(text)]
        marked = limits.max_breakpoints is not None and _is_marked(prompt.body, segment.pointer)
        for end in ends:
            piece = text[end - 1 - (end - 1) % PIECE_CHARS : end] if end else ""
            mark = limits.default if marked and end == len(text) else None
            yield HostedBlock(digest([segment.role, piece]), count(piece), mark)


def _no_texts(message: Message) -> list[Any]:
    """Parts of its content that hold no text: images and the like."""
    content = message.value.get("content") if isinstance(message.value, dict) else None
    return [part for part in content if "text" not in part] if isinstance(content, list) else []


def _is_marked(body: Any, pointer: Pointer) -> bool:
    """Whether the part whose text stands at ``pointer`` carries an explicit breakpoint."""
    value = body
    for key in pointer[:-1]:
        value = value[key]
    return isinstance(value, dict) and value.get(MARK) is not None
