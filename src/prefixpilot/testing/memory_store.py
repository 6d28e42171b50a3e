"""A memory store without an index: for tests, examples and small programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefixpilot.core import ContextBlock
from prefixpilot.retrievers import Retrieved
from prefixpilot.retrievers.base import check_query

_WORD = re.compile(r"\w{3,}")


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


class WordMemory:
    """Finds the texts that share most words of three letters and more with a query; of equal ones the newer. A
    :class:`~prefixpilot.retrievers.MemoryStore`. ``add`` O(1) a text, ``retrieve`` O(texts); holds all that is added.

    >>> memory = WordMemory(["Ann likes tea.", "The tram leaves at nine."])
    >>> [block.text for block in memory.retrieve("When does the tram leave?", 5).blocks]
    ['The tram leaves at nine.']
    """

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts: dict[str, frozenset[str]] = {}
        self.add(texts)

    def add(self, texts: Sequence[str]) -> None:
        """See :meth:`prefixpilot.retrievers.MemoryStore.add`. A text that it has becomes the newest."""
        check_query(texts, 1)
        for text in texts:
            self._texts.pop(text, None)
            self._texts[text] = _words(text)

    def retrieve(self, query: str, k: int) -> Retrieved:
        """See :meth:`prefixpilot.retrievers.Retriever.retrieve`. A text without a common word is not found."""
        check_query([query], k)
        wanted = _words(query)
        common = [(text, len(words & wanted)) for text, words in reversed(self._texts.items())]
        found = sorted(((text, count) for text, count in common if count), key=lambda each: -each[1])[:k]
        return Retrieved(tuple(ContextBlock(text) for text, _ in found), tuple(float(count) for _, count in found))
