"""BM25 by ``bm25s``: search by words over a corpus in memory, saved to one file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prefixpilot.core import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, MissingExtraError
from prefixpilot.retrievers.base import BatchRetriever, Retrieved, check_query
from prefixpilot.retrievers.corpus import at_least_kth, corpus_of, ranked, searched_text, with_bar
from prefixpilot.retrievers.saved import SavedIndex, damaged, read_index

try:
    import bm25s
except ImportError:
    raise MissingExtraError("bm25s", 'pip install "prefixpilot[bm25]"') from None

KIND = "bm25"
_AT_ONCE = 256
"""Documents between two steps of the progress bar."""

Stemmer = Callable[[list[str]], list[str]]
"""Words in, their stems out, in parallel: ``Stemmer.Stemmer("english").stemWords`` of PyStemmer."""


class Words(NamedTuple):
    """How texts become words. The same for documents and queries.

    Attributes:
        language: whose stop words are left out, by a name or code that ``bm25s`` knows (``english``, ``de``); empty
            leaves all words in.
        stemmer: ``None`` compares words as they are, in lower case.
    """

    language: str = "english"
    stemmer: Stemmer | None = None

    def of(self, texts: Sequence[str]) -> list[list[str]]:
        """The words of each text, in order. O(characters)."""
        found: list[list[str]] = bm25s.tokenize(
            list(texts), stopwords=self.language or [], stemmer=self.stemmer, return_ids=False, show_progress=False
        )
        return found


ENGLISH = Words()


class BM25Retriever(BatchRetriever):
    """Finds the blocks whose words are those of the query (Robertson's BM25, Lucene's variant).

    Blocks that share no word with the query are not found, so there may be fewer than ``k``. Of equal scores the block
    that stands first in the corpus comes first. Once built it does not change, and threads may share it.
    A query takes O(blocks); the index is in memory.
    """

    def __init__(self, index: bm25s.BM25, blocks: Sequence[ContextBlock], words: Words) -> None:
        """Use :meth:`build` or :meth:`load`."""
        self._index = index
        self._blocks = tuple(blocks)
        self._words = words

    @classmethod
    def build(
        cls,
        documents: Iterable[str | ContextBlock],
        *,
        words: Words = ENGLISH,
        k1: float = 1.5,
        b: float = 0.75,
        progress: bool = False,
    ) -> BM25Retriever:
        """Index ``documents``; repeats are left out.

        Args:
            k1, b: BM25's saturation (0 or more) and its weight of length (0 to 1).
            progress: a bar on stderr, on a terminal only.

        Raises:
            InvalidRequestError: no documents, one without text, or none with a word that can be searched for.
            ConfigError: ``k1``, ``b`` or the language cannot be used.
        """
        _check_settings(k1, b, words)
        blocks = corpus_of(documents)
        starts = range(0, len(blocks), _AT_ONCE)
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for start in with_bar(starts, "BM25 index", f" x {_AT_ONCE} blocks", progress):
            texts = [searched_text(block) for block in blocks[start : start + _AT_ONCE]]
            ids += [[vocabulary.setdefault(word, len(vocabulary)) for word in found] for found in words.of(texts)]
        if not vocabulary:
            raise InvalidRequestError("documents", "have no word to search for", "give texts, or Words(language='')")
        index = bm25s.BM25(k1=k1, b=b)
        index.index((ids, vocabulary), show_progress=False)
        return cls(index, blocks, words)

    @property
    def blocks(self) -> tuple[ContextBlock, ...]:
        """The corpus, without repeats."""
        return self._blocks

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """See :meth:`prefixpilot.retrievers.BatchRetriever.retrieve_batch`. Scores are BM25's, above 0."""
        check_query(queries, k)
        return [self._found(words, k) for words in self._words.of(queries)]

    def _found(self, words: list[str], k: int) -> Retrieved:
        ids = self._index.get_tokens_ids(words)
        if not ids:
            return Retrieved((), ())
        scores = np.asarray(self._index.get_scores_from_ids(ids), dtype=np.float64)
        best = at_least_kth(scores, k)
        best = best[scores[best] > 0]
        return ranked(self._blocks, best, scores[best], k)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index and its blocks to one file. A stemmer is not saved; :meth:`load` is given it again.

        Raises:
            RetrieverError: the file cannot be written.
        """
        facts = {"language": self._words.language, "stemmed": self._words.stemmer is not None}
        with tempfile.TemporaryDirectory() as folder:
            self._index.save(folder, show_progress=False)
            parts = {part.name: part.read_bytes() for part in sorted(Path(folder).iterdir())}
        SavedIndex(KIND, self._blocks, facts, parts).write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, stemmer: Stemmer | None = None) -> BM25Retriever:
        """Read what :meth:`save` wrote; the corpus is not indexed again.

        Raises:
            RetrieverError: see :func:`prefixpilot.retrievers.saved.read_index`.
            ConfigError: it was built with a stemmer and none is given, or the other way round.
        """
        saved = read_index(path, KIND)
        if saved.facts.get("stemmed") != (stemmer is not None):
            wanted = "with a stemmer" if saved.facts.get("stemmed") else "without one"
            raise ConfigError("stemmer", f"{path} was built {wanted}", "give the stemmer that it was built with")
        try:
            index = _unpacked(saved)
            words = Words(str(saved.facts["language"]), stemmer)
        except (OSError, EOFError, KeyError, ValueError, TypeError) as error:
            raise damaged(path, error) from error
        return cls(index, saved.blocks, words)


def _unpacked(saved: SavedIndex) -> bm25s.BM25:
    with tempfile.TemporaryDirectory() as folder:
        for name, part in saved.parts.items():
            Path(folder, Path(name).name).write_bytes(part)
        index = bm25s.BM25.load(folder, show_progress=False)
    if index.scores["num_docs"] != len(saved.blocks):
        raise ValueError(f"{len(saved.blocks)} blocks, and scores of {index.scores['num_docs']}")
    return index


def _check_settings(k1: float, b: float, words: Words) -> None:
    if not k1 >= 0:
        raise ConfigError("k1", f"is {k1!r}", "give a number of 0 or more")
    if not 0 <= b <= 1:
        raise ConfigError("b", f"is {b!r}", "give a number from 0 to 1")
    try:
        words.of(["probe"])
    except ValueError as error:
        raise ConfigError(
            "words.language", str(error), "give a language that bm25s knows, or an empty string"
        ) from error
