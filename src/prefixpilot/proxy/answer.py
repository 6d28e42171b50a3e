"""An observer of the engine's answer: sees the bytes that go by and never changes or holds them."""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

from prefixpilot.proxy.content import Usage, listener
from prefixpilot.proxy.memory.reply import Reply
from prefixpilot.proxy.wire.sse import FIELDS, EventParser, LineSplitter

MAX_JSON_BYTES: Final = 16 << 20
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_COUNTS: Final = re.compile(rb'"(?:usage|timings|error)"\s*+:\s*+(?!null)')
"""What is read of a stream whose text nobody wants."""
_SPACE: Final = " \t\n\r"
_SCAN: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # what json.loads calls, without six others
_LINE_TYPES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")


class Kind(enum.Enum):
    """How an answer is cut into documents."""

    UNKNOWN = "unknown"
    """It has no Content-Type and has not begun."""
    WHOLE = "whole"
    EVENTS = "events"
    LINES = "lines"


class AnswerObserver:
    """Reads an answer as it passes: whether content has begun, the text and the tool calls, the usage.

    Attributes:
        started: the engine's first content has arrived: it holds the prompt. Never true of an error.
        reply: the answer's first choice so far.
        usage: as reported; ``None`` if it was not.
        name: the id under which the engine keeps the answer (Responses); ``None`` as long as it has not said so.

    Args:
        status: HTTP status; anything but 2xx is never content.
        content_type, content_encoding: header values, empty if absent. An encoding that we cannot read counts as
            content with its first byte, and has no text. Without a type the first bytes tell events from a document.
        api: of the request.
    """

    def __init__(self, status: int, content_type: str, content_encoding: str = "", api: str = "chat") -> None:
        self.started = False
        self.reply = Reply()
        self.usage: Usage | None = None
        self.name: str | None = None
        self._listen = listener(api)
        self._kind = _kind(content_type.partition(";")[0].strip().lower())
        self._failed = not 200 <= status < 300
        self._decoder = _decoder(content_encoding)
        self._events = EventParser()
        self._lines = LineSplitter()
        self._body = bytearray()
        self._wants_reply = True

    def without_reply(self) -> None:
        """Nobody will ask for ``reply``: behind the first content, documents without counts are not parsed."""
        self._wants_reply = False

    @property
    def streaming(self) -> bool:
        """The answer is a stream of events or of lines, as far as is known."""
        return self._kind in (Kind.EVENTS, Kind.LINES)

    @property
    def whole(self) -> bool:
        """The answer is one document, known only with its last byte."""
        return self._kind is Kind.WHOLE

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
            return
        if self._kind is Kind.UNKNOWN and data.strip():
            self._kind = Kind.EVENTS if data.lstrip().startswith(FIELDS) else Kind.WHOLE
        if self._kind is Kind.WHOLE:
            if len(self._body) <= MAX_JSON_BYTES:
                self._body += data
            return
        for document in self._events.feed(data) if self._kind is Kind.EVENTS else self._lines.feed(data):
            self._read_piece(document)

    def finish(self) -> None:
        """The body has come to its proper end."""
        if self._failed or self._decoder is None:
            return
        if self._kind is not Kind.WHOLE:
            for document in (*self._events.finish(), *self._lines.finish()):
                self._read_piece(document)
        if len(self._body) > MAX_JSON_BYTES:
            self.started = True
        elif self._body:
            self._read_piece(bytes(self._body))

    def _read_piece(self, payload: bytes) -> None:
        if self.started and not self._wants_reply and _COUNTS.search(payload) is None:
            return
        document = _json_object(payload)
        if document is None or self._failed:
            return
        if document.get("error"):
            self._failed = True
            return
        self._read_document(document)

    def _read_document(self, document: Mapping[str, Any]) -> None:
        started, failed, usage, name = self._listen(document, self.reply)
        self.started = self.started or (started and not failed)
        self._failed = failed
        self.usage = usage or self.usage
        self.name = name or self.name


def _kind(content_type: str) -> Kind:
    if not content_type:
        return Kind.UNKNOWN
    if content_type == "text/event-stream":
        return Kind.EVENTS
    return Kind.LINES if content_type in _LINE_TYPES else Kind.WHOLE


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
        document, end = _SCAN(text := data.decode(), 0)
        if end < len(text.rstrip(_SPACE)):
            return None
    except (StopIteration, ValueError, RecursionError):
        document = _loaded(data)
    return document if isinstance(document, dict) else None


def _loaded(data: bytes) -> Any:
    """Of what does not begin at once, or is in another coding; ``None`` if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
