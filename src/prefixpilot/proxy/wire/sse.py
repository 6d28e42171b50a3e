"""Server-sent events: the ``data`` of each event, from bytes that come in any pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_EVENT_BYTES: Final = 4 << 20
FIELDS: Final = (b":", b"data", b"event", b"id", b"retry")
"""What a stream of events can begin with."""


class LineSplitter:
    """Lines of a stream that end with CR, LF or CRLF. Of a line over ``MAX_EVENT_BYTES`` only the head is kept."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that these bytes complete. O(bytes)."""
        if not data:
            return
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r") if data else False
        *lines, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            whole = bytes(self._line) + line
            self._line.clear()
            yield whole
        if len(self._line) <= MAX_EVENT_BYTES:
            self._line += rest

    def finish(self) -> Iterator[bytes]:
        """The last line, if no end of line came."""
        if self._line:
            yield bytes(self._line)
            self._line.clear()


class EventParser:
    """Splits a stream of events. An event longer than ``MAX_EVENT_BYTES`` is skipped.

    >>> parser = EventParser()
    >>> list(parser.feed(b"data: 1"))
    []
    >>> list(parser.feed(b"2\\r\\n\\r\\n: ping\\r\\rdata: [DONE]"))
    [b'12']
    >>> list(parser.finish())
    [b'[DONE]']
    """

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The ``data`` fields of the events that these bytes complete. O(bytes)."""
        for line in self._lines.feed(data):
            yield from self._take(line)

    def finish(self) -> Iterator[bytes]:
        """The last event, if the stream ends without the blank line that completes it."""
        for line in self._lines.finish():
            yield from self._take(line)
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data and self._size <= MAX_EVENT_BYTES:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            self._size += len(line)
            if self._size <= MAX_EVENT_BYTES:
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
