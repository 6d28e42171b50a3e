"""Server-sent events: the ``data`` of each event, from bytes that come in any pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_EVENT_BYTES: Final = 4 << 20


class EventParser:
    """Splits a stream of events. Lines end with LF or CRLF; an event longer than ``MAX_EVENT_BYTES`` is skipped.

    >>> parser = EventParser()
    >>> list(parser.feed(b"data: 1"))
    []
    >>> list(parser.feed(b"2\\r\\n\\r\\n: ping\\n\\ndata: [DONE]\\n\\n"))
    [b'12', b'[DONE]']
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The ``data`` fields of the events that these bytes complete. O(bytes)."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._line) + line
            self._line.clear()
            yield from self._take(whole.removesuffix(b"\r"))
        if len(self._line) <= MAX_EVENT_BYTES:
            self._line += rest

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data and self._size <= MAX_EVENT_BYTES:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            self._size += len(line)
            if self._size <= MAX_EVENT_BYTES:
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
