"""An observer of the engine's answer: sees the bytes that go by and never changes or holds them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prefixpilot.proxy.reply import ReplyText
from prefixpilot.proxy.sse import EventParser

MAX_JSON_BYTES: Final = 16 << 20
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_CONTENT_KEYS: Final = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own counts; ``None`` is unknown, never zero."""

    prompt_tokens: int | None
    cached_tokens: int | None


class AnswerObserver:
    """Reads an answer as it passes: whether content has begun, the text, the usage.

    Attributes:
        started: the engine's first content has arrived: it holds the prompt. Never true of an error.
        streaming: the answer is a stream of events.
        reply: text of the answer's first choice so far.
        usage: as reported; ``None`` if it was not.

    Args:
        status: HTTP status; anything but 200 is never content.
        content_type, content_encoding: header values, empty if absent. An encoding that we cannot read counts as
            content with its first byte, and has no text.
    """

    def __init__(self, status: int, content_type: str, content_encoding: str = "") -> None:
        self.started = False
        self.reply = ReplyText()
        self.usage: Usage | None = None
        self.streaming = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._failed = status != 200
        self._decoder = _decoder(content_encoding)
        self._events = EventParser()
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body as they came over the wire."""
        if self._failed or not data:
            return
        try:
            data = self._decoder.decode(data) if self._decoder else b""
        except zlib.error:
            self._decoder = None
        if self._decoder is None:
            self.started = True
        elif self.streaming:
            for payload in self._events.feed(data):
                self._read_event(payload)
        elif len(self._body) <= MAX_JSON_BYTES:
            self._body += data

    def finish(self) -> None:
        """The body has come to its proper end."""
        if self._failed or self.streaming or self._decoder is None:
            return
        if len(self._body) > MAX_JSON_BYTES:
            self.started = True
            return
        document = _json_object(bytes(self._body))
        if document is not None and "error" not in document:
            self._read_document(document, "message")

    def _read_event(self, payload: bytes) -> None:
        document = _json_object(payload)
        if document is None or self._failed:
            return
        if document.get("error"):
            self._failed = True
            return
        self._read_document(document, "delta")

    def _read_document(self, document: Mapping[str, Any], kind: str) -> None:
        for choice in _objects(document.get("choices")):
            message = choice.get(kind)
            message = message if isinstance(message, dict) else {}
            if choice.get("finish_reason") or any(message.get(key) for key in _CONTENT_KEYS):
                self.started = True
            text = message.get("content")
            if isinstance(text, str) and choice.get("index", 0) == 0:
                self.reply.add(text)
        self.usage = _usage(document.get("usage")) or self.usage


class _Identity:
    """The body as it is."""

    def decode(self, data: bytes) -> bytes:
        return data


class _Inflate:
    """A gzip or deflate body, bounded by what one chunk may unfold to."""

    def __init__(self, window_bits: int) -> None:
        self._inflate = zlib.decompressobj(window_bits)

    def decode(self, data: bytes) -> bytes:
        return self._inflate.decompress(data, MAX_JSON_BYTES)


def _decoder(content_encoding: str) -> _Identity | _Inflate | None:
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    return _Inflate(_WINDOW_BITS[name]) if name in _WINDOW_BITS else None


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (element for element in value if isinstance(element, dict))


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = value.get("prompt_cache_hit_tokens")
    return Usage(_count(value.get("prompt_tokens")), _count(cached))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
