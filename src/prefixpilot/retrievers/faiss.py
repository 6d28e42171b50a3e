"""FAISS: search by embeddings over a corpus in memory, saved to one file. Any embedding function."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from prefixpilot.core import ContextBlock
from prefixpilot.errors import ConfigError, MissingExtraError, RetrieverError
from prefixpilot.retrievers.base import BatchRetriever, Retrieved, check_query
from prefixpilot.retrievers.corpus import Positions, Scores, corpus_of, ranked, searched_text, with_bar
from prefixpilot.retrievers.embedding import Embedder, Vectors, embed_normalised, local_embedder
from prefixpilot.retrievers.saved import SavedIndex, damaged, read_index

try:
    import faiss
except ImportError:
    raise MissingExtraError("faiss-cpu", 'pip install "prefixpilot[faiss]"') from None

KIND = "faiss"
_VECTORS = "vectors.faiss"
_PROBE = "A sentence by which an embedding model is told from others."
_SAME_MODEL = 0.99
"""Cosine of the probe's embeddings, then and now, from which on they are of one model: services round differently."""

_MARGIN = 32
_MOST_TIED = 1024
_ROUNDING = 1e-5
"""FAISS adds in another order for other sizes of batches: scores this close may be equal."""


class FaissRetriever(BatchRetriever):
    """Finds the blocks whose embeddings point where the query's does (cosine).

    Scores are computed anew from the vectors, in one fixed way: the same query finds the same blocks in the same order,
    alone or in a batch; of equal scores the block that stands first in the corpus comes first (up to 1,024 equal ones;
    approximate kinds of index find what they find). Once built it does not change, and threads may share it.
    """

    def __init__(self, index: faiss.Index, blocks: Sequence[ContextBlock], embed: Embedder) -> None:
        """Use :meth:`build` or :meth:`load`."""
        self._index = index
        self._blocks = tuple(blocks)
        self._embed = embed

    @classmethod
    def build(
        cls,
        documents: Iterable[str | ContextBlock],
        embed: Embedder | None = None,
        *,
        factory: str = "Flat",
        at_once: int = 256,
        progress: bool = False,
    ) -> FaissRetriever:
        """Embed and index ``documents``; repeats are left out.

        Args:
            embed: by default a small local model (extra ``local-embeddings``).
            factory: FAISS's name of the kind of index: ``Flat`` is exact, ``HNSW32`` for millions of blocks.
            at_once: texts in one call of ``embed``.
            progress: a bar on stderr, on a terminal only.

        Raises:
            InvalidRequestError: no documents, or one without text.
            ConfigError: ``factory`` is none, or needs more documents than there are; ``at_once`` is below 1.
            MissingExtraError: no ``embed`` given, and the local model is not installed.
            RetrieverError: ``embed`` did not give one row of finite numbers a text.
        """
        if at_once < 1:
            raise ConfigError("at_once", f"is {at_once!r}", "give an int of 1 or more")
        blocks = corpus_of(documents)
        embed = embed or local_embedder()
        texts = [searched_text(block) for block in blocks]
        starts = range(0, len(texts), at_once)
        rows = [
            embed_normalised(embed, texts[start : start + at_once])
            for start in with_bar(starts, "FAISS index", f" x {at_once} blocks", progress)
        ]
        return cls(_indexed(_stacked(rows), factory), blocks, embed)

    @property
    def blocks(self) -> tuple[ContextBlock, ...]:
        """The corpus, without repeats."""
        return self._blocks

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """See :meth:`prefixpilot.retrievers.BatchRetriever.retrieve_batch`. Scores are cosines.

        A query without an embedding (of zeros) finds nothing. With ``Flat``, O(queries * blocks * dimension).

        Raises:
            RetrieverError: the embedder's rows are of another dimension than the index, or are none.
        """
        check_query(queries, k)
        if not queries:
            return []
        vectors = embed_normalised(self._embed, queries)
        _check_dimension(vectors, self._index)
        _, nearest = self._index.search(vectors, min(k + _MARGIN, len(self._blocks)))
        return [self._best(vector, found, k) for vector, found in zip(vectors, nearest, strict=True)]

    def _best(self, vector: Vectors, found: Positions, k: int) -> Retrieved:
        if not vector.any():
            return Retrieved((), ())
        positions = found[found >= 0]
        scores = self._scores(vector, positions)
        while self._cut_in_ties(scores, k):
            more = min(2 * len(positions), len(self._blocks))
            positions = self._index.search(vector[np.newaxis], more)[1][0]
            positions = positions[positions >= 0]
            if len(positions) <= len(scores):
                break
            scores = self._scores(vector, positions)
        return ranked(self._blocks, positions, scores, k)

    def _cut_in_ties(self, scores: Scores, k: int) -> bool:
        """Whether blocks that were not fetched may be as good as the ``k``-th."""
        if not k <= len(scores) < min(len(self._blocks), k + _MOST_TIED):
            return False
        return bool(np.partition(scores, len(scores) - k)[len(scores) - k] - scores.min() <= _ROUNDING)

    def _scores(self, vector: Vectors, positions: Positions) -> Scores:
        """Cosines, each added up by itself in double precision: no score depends on those beside it."""
        rows = self._index.reconstruct_batch(positions).astype(np.float64)
        scores: Scores = (rows * vector.astype(np.float64)).sum(axis=1)
        return scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write vectors, blocks and an embedding by which the model is known again to one file.

        Raises:
            RetrieverError: the file cannot be written, or the embedder failed.
        """
        facts = {"probe": embed_normalised(self._embed, [_PROBE])[0].tolist()}
        parts = {_VECTORS: faiss.serialize_index(self._index).tobytes()}
        SavedIndex(KIND, self._blocks, facts, parts).write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], embed: Embedder | None = None) -> FaissRetriever:
        """Read what :meth:`save` wrote; nothing is embedded again but one sentence, to know the model by.

        Load only files that you trust: FAISS reads them without doubting them.

        Raises:
            RetrieverError: see :func:`prefixpilot.retrievers.saved.read_index`; or ``embed`` is of another
                dimension, or another model.
            MissingExtraError: no ``embed`` given, and the local model is not installed.
        """
        saved = read_index(path, KIND)
        embed = embed or local_embedder()
        try:
            index = faiss.deserialize_index(np.frombuffer(saved.parts[_VECTORS], dtype=np.uint8))
            probe = np.asarray(saved.facts["probe"], dtype=np.float32)
            if index.ntotal != len(saved.blocks) or probe.shape != (index.d,):
                raise ValueError(f"{index.ntotal} vectors of {len(saved.blocks)} blocks")
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise damaged(path, error) from error
        _make_reconstructable(index)
        now = embed_normalised(embed, [_PROBE])
        _check_dimension(now, index)
        if float(now[0] @ probe) < _SAME_MODEL:
            raise RetrieverError(
                f"{path} was built with another embedding model; load it with that one, or build it anew"
            )
        return cls(index, saved.blocks, embed)


def _stacked(rows: Sequence[Vectors]) -> Vectors:
    dimensions = {row.shape[1] for row in rows}
    if len(dimensions) > 1:
        raise RetrieverError(f"the embedder gave rows of {sorted(dimensions)} dimensions; it has to keep to one")
    return np.vstack(rows)


def _indexed(vectors: Vectors, factory: str) -> Any:
    try:
        index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        _make_reconstructable(index)
        index.reconstruct_batch(np.zeros(1, dtype=np.int64))
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2] or str(error)
        raise ConfigError(
            "factory", f"{factory!r} cannot be used here ({reason})", 'give "Flat", or see FAISS'
        ) from error
    return index


def _make_reconstructable(index: Any) -> None:
    """Inverted lists give a vector by its position only once they are told to keep a map."""
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        lists.make_direct_map()


def _check_dimension(vectors: Vectors, index: Any) -> None:
    if vectors.shape[1] != index.d:
        raise RetrieverError(
            f"the embedder gives {vectors.shape[1]} dimensions and the index has {index.d}; "
            "use the embedder that it was built with, or build it anew"
        )
