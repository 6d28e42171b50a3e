"""Takes out of a stream of events the usage that the client did not ask for.

With ``stream_options.include_usage`` an engine sends one more event, whose ``choices`` are empty, with the usage of the
whole answer (OpenAI Chat and Completions). Where we asked for it in the client's place, that event is not the client's.
"""

from __future__ import annotations

import json
import re
from typing import Final

from prefixpilot.proxy.wire.sse import MAX_EVENT_BYTES

_END_OF_EVENT: Final = re.compile(rb"(?>\r\n|\r|\n)(?:\r\n|\n|\r(?!\n|\Z))")
"""A blank line. A CR that ends what has come so far waits for its LF."""
_DATA: Final = re.compile(rb"^data: ?(.*?)$", re.MULTILINE)


class UsageFilter:
    """Passes a stream on, byte for byte, without the usage event. Bytes are held only until their event is complete.

    >>> stream = UsageFilter()
    >>> stream.feed(b'data: {"choices": [1]}\\n\\ndata: {"choices": [], "usage": {"prompt')
    b'data: {"choices": [1]}\\n\\n'
    >>> stream.feed(b'_tokens": 3}}\\n\\ndata: [DONE]\\n\\n')
    b'data: [DONE]\\n\\n'
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        self._passing = False

    def feed(self, data: bytes) -> bytes:
        """What to pass on now. O(bytes). An event longer than ``MAX_EVENT_BYTES`` passes as it comes."""
        self._held += data
        passed = bytearray()
        while (end := _END_OF_EVENT.search(self._held, max(0, self._searched - 3))) is not None:
            event = bytes(self._held[: end.end()])
            del self._held[: end.end()]
            self._searched = 0
            if self._passing or len(event) > MAX_EVENT_BYTES or not _is_usage(event):
                passed += event
            self._passing = False
        if self._passing or len(self._held) > MAX_EVENT_BYTES:
            self._passing = True
            kept = 3  # what may belong to the blank line
            passed += self._held[:-kept]
            del self._held[:-kept]
        self._searched = len(self._held)
        return bytes(passed)

    def finish(self) -> bytes:
        """What is left when the stream ends."""
        rest = bytes(self._held)
        self._held.clear()
        return b"" if not self._passing and _is_usage(rest) else rest


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        value = json.loads(b"\n".join(_DATA.findall(lines)))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("choices") == [] and isinstance(value.get("usage"), dict)
