"""The text that an engine answered to a turn, and whether a client's history repeats it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

HEAD_CHARS: Final = 1024


class Likeness(enum.Enum):
    """How a client's assistant message compares with what the engine answered."""

    EQUAL = "equal"
    HEAD = "head"
    UNKNOWN = "unknown"
    OTHER = "other"


class ReplyText:
    """The head of an answer, at most ``HEAD_CHARS`` characters; it grows while the answer streams."""

    __slots__ = ("_cut", "_text")

    def __init__(self, text: str = "") -> None:
        self._text = ""
        self._cut = False
        self.add(text)

    def add(self, text: str) -> None:
        """Append what the engine sent."""
        if not self._cut:
            joined = self._text + text
            self._cut = len(joined) > HEAD_CHARS
            self._text = joined[:HEAD_CHARS]

    def compare(self, client: str) -> Likeness:
        """Compare with the client's copy: both stripped; a client may have cut the tail off."""
        ours, theirs = self._text.strip(), client.strip()
        if not ours or not theirs:
            return Likeness.UNKNOWN
        if ours == theirs and not self._cut:
            return Likeness.EQUAL
        if ours.startswith(theirs):
            return Likeness.HEAD
        if self._cut and theirs.startswith(self._text.lstrip()):
            return Likeness.EQUAL
        return Likeness.OTHER


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message, its text parts joined; empty if it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))
