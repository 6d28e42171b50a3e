"""Exact times that were told in user messages, so that they are sent again with them (invariant 4a).

They stand in the ledger of forms, but not in a message's own form: that is known by what the client sent in this very
message, and these words are the client's from the system text of that request. So their key holds who sent it and the
system text without times too, and they are only ever given back to the same sender, application and history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefixpilot.dedup.chunking import text_digest
from prefixpilot.proxy.memory.forms import NOBODY, FormsLedger, Sender, Sent
from prefixpilot.proxy.ordinary.chain import Links, joined


class Times:
    """Those of one sender. O(1) a message.

    Two conversations of one sender that are equal up to a message may have told two times in it. The one that was sent
    last counts; once they differ, each has its own.

    Args:
        who: digest of tenant and credential.
    """

    def __init__(self, ledger: FormsLedger, who: bytes) -> None:
        self._ledger = ledger
        self._who = who

    def told(self, links: Links, messages: Iterable[int]) -> dict[int, str]:
        """The words that stood behind each of these messages, by index; none if there were none.

        ``links`` are those of the prompt whose system text tells no time.
        """
        found: dict[int, str] = {}
        for index in messages:
            sent = self._ledger.recall(self._key(links, index), NOBODY, lambda _: True)
            words = sent.forms[0][0] if sent is not None else None
            if isinstance(words, str):
                found[index] = words
        return found

    def record(self, links: Links, told: Mapping[int, str]) -> None:
        """The engine has had these words behind these messages."""
        for index, words in told.items():
            self._ledger.record(self._key(links, index), Sender(text_digest(words), b""), Sent(((words,),)))

    def _key(self, links: Links, index: int) -> bytes:
        return joined([b"told", self._who, links.system, links.links[index] or b""])
