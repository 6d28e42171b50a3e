"""What an index is built of: distinct blocks in a fixed order; and what is found in it, ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from prefixpilot.blocks import block_identity
from prefixpilot.core import BlockId, ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.retrievers.base import Retrieved

T = TypeVar("T")
Positions = NDArray[np.int64]
Scores = NDArray[np.float64]


def corpus_of(documents: Iterable[str | ContextBlock]) -> tuple[ContextBlock, ...]:
    """The blocks of a corpus, in the order given; of those that would stand in a prompt alike, the first.

    Raises:
        InvalidRequestError: one string for a list, nothing at all, or a document that is no text.
    """
    if isinstance(documents, str):
        raise InvalidRequestError("documents", "is one string", "give a list of strings or of ContextBlock objects")
    distinct: dict[BlockId, ContextBlock] = {}
    for position, document in enumerate(documents):
        block = _block(document, f"documents[{position}]")
        distinct.setdefault(block_identity(block), block)
    if not distinct:
        raise InvalidRequestError("documents", "is empty", "give at least one document")
    return tuple(distinct.values())


def _block(document: object, field: str) -> ContextBlock:
    if isinstance(document, str):
        document = ContextBlock(document)
    if not isinstance(document, ContextBlock):
        raise InvalidRequestError(field, f"is {type(document).__name__}", "give a str or a ContextBlock")
    if not document.text or document.text.isspace():
        raise InvalidRequestError(field, "has no text", "leave it out, or give its text")
    return document


def searched_text(block: ContextBlock) -> str:
    """What a query is compared with: the title, if there is one, and the text."""
    return f"{block.title}\n{block.text}" if block.title else block.text or ""


def ranked(blocks: Sequence[ContextBlock], positions: Positions, scores: Scores, k: int) -> Retrieved:
    """The ``k`` best of what was found; of equal scores, the block that stands first in the corpus.

    Args:
        positions: into ``blocks``, distinct, in any order; shape ``(n,)``.
        scores: in parallel; higher is better.
    """
    best = np.lexsort((positions, -scores))[:k]
    return Retrieved(tuple([blocks[int(positions[i])] for i in best]), tuple([float(scores[i]) for i in best]))


def distinct(found: Iterable[tuple[ContextBlock, float]], k: int) -> Retrieved:
    """The first ``k`` of what was found, in its order; of blocks that would stand in a prompt alike, the first."""
    firsts: dict[BlockId, tuple[ContextBlock, float]] = {}
    for block, score in found:
        firsts.setdefault(block_identity(block), (block, score))
    kept = list(firsts.values())[:k]
    return Retrieved(tuple([block for block, _ in kept]), tuple([score for _, score in kept]))


def at_least_kth(scores: Scores, k: int) -> Positions:
    """Positions of all scores that are as high as the ``k``-th highest, in ascending order. O(n)."""
    if k >= len(scores):
        return np.arange(len(scores))
    kth = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= kth)


def with_bar(steps: Sequence[T], what: str, unit: str, progress: bool) -> Iterator[T]:
    """``steps``, with a progress bar on stderr if that is a terminal and the caller wants one."""
    from tqdm import tqdm

    return iter(tqdm(steps, desc=what, unit=unit, disable=None if progress else True, leave=False))
