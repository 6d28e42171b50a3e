"""Search in a document tree: sections are scored by their path, summary and text, all of them or level by level."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from prefixpilot.errors import ConfigError, RetrieverError
from prefixpilot.retrievers.base import BatchRetriever, Retrieved, check_query
from prefixpilot.retrievers.corpus import distinct
from prefixpilot.retrievers.document_tree import DocumentTree, Node

NodeScorer = Callable[[str, Sequence[Node]], Sequence[float]]
"""A query and sections in, a score for each out, in parallel: higher is more relevant, 0 and below is not at all. A
language model that reads titles and summaries, embeddings, words. Called from threads."""

Order = Literal["relevance", "document"]

_WORD = re.compile(r"\w+")


class DocumentTreeRetriever(BatchRetriever):
    """Finds sections of a :class:`prefixpilot.retrievers.document_tree.DocumentTree`.

    A block is the section's own text under its path, whatever was asked. Of equal scores the section that stands first
    in the document comes first.
    """

    def __init__(
        self,
        tree: DocumentTree,
        scorer: NodeScorer | None = None,
        *,
        order: Order = "relevance",
        beam: int | None = None,
    ) -> None:
        """
        Args:
            scorer: by default :func:`word_scorer`.
            order: ``document`` gives the ``k`` most relevant sections in the order of the document, which suits texts
                that build on each other, and scores in parallel.
            beam: walk down the tree and look only below the ``beam`` best sections of each level: fewer sections for an
                expensive scorer, which then has to judge a section by what is below it, by its summary. ``None`` scores
                all sections at once.

        Raises:
            ConfigError: ``order`` or ``beam`` cannot be used.
        """
        if order not in ("relevance", "document"):
            raise ConfigError("order", f"is {order!r}", "give relevance or document")
        if beam is not None and (type(beam) is not int or beam < 1):
            raise ConfigError("beam", f"is {beam!r}", "give an int of 1 or more, or None")
        self._tree = tree
        self._scorer = scorer or word_scorer(tree)
        self._in_document_order = order == "document"
        self._beam = beam

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """See :meth:`prefixpilot.retrievers.BatchRetriever.retrieve_batch`. Sections without text are never found.

        Raises:
            RetrieverError: the scorer did not give a number for each section.
        """
        check_query(queries, k)
        return [self._found(query, k) for query in queries]

    def _found(self, query: str, k: int) -> Retrieved:
        scores = self._walked(query)
        best = sorted((place for place in scores if scores[place] > 0), key=lambda place: (-scores[place], place))
        blocks = [(place, self._tree.nodes[place].block) for place in best]
        found = distinct(((block, scores[place]) for place, block in blocks if block is not None), k)
        if not self._in_document_order:
            return found
        places = {block: place for place, block in reversed(blocks)}
        kept = sorted(zip(found.blocks, found.scores, strict=True), key=lambda pair: places[pair[0]])
        return distinct(kept, k)

    def _walked(self, query: str) -> dict[int, float]:
        """Scores of the sections that were looked at, by position."""
        if self._beam is None:
            return self._scored(query, range(len(self._tree.nodes)))
        scores: dict[int, float] = {}
        level: Sequence[int] = self._tree.roots
        while level:
            here = self._scored(query, level)
            scores |= here
            best = sorted((place for place in level if here[place] > 0), key=lambda place: (-here[place], place))
            level = [child for place in best[: self._beam] for child in self._tree.nodes[place].children]
        return scores

    def _scored(self, query: str, places: Sequence[int]) -> dict[int, float]:
        given = self._scorer(query, [self._tree.nodes[place] for place in places])
        try:
            scores = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise RetrieverError(f"the scorer gave {type(given).__name__}; it has to give numbers") from error
        if scores.shape != (len(places),) or np.isnan(scores).any():
            problem = f"the scorer gave scores of shape {scores.shape}, or NaN among them, for {len(places)} sections"
            raise RetrieverError(f"{problem}; it has to give a number each")
        return dict(zip(places, scores.tolist(), strict=True))


def word_scorer(tree: DocumentTree) -> NodeScorer:
    """Scores by the words that a section shares with the query. Rare words count for more, words of its path twice.

    Simple, and without any dependency: enough to find sections by their names. O(characters of the tree) once.
    """
    held = {node.id: _words(" ".join((*node.path, node.summary, node.text))) for node in tree.nodes}
    paths = {node.id: _words(" ".join(node.path)) for node in tree.nodes}
    count = Counter(word for words in held.values() for word in words)
    weights = {word: math.log(1 + len(held) / number) for word, number in count.items()}

    def score(query: str, nodes: Sequence[Node]) -> list[float]:
        asked = sorted(_words(query))
        return [math.fsum(weights[word] * times(word, node) for word in asked if word in weights) for node in nodes]

    def times(word: str, node: Node) -> int:
        return (word in held[node.id]) + (word in paths[node.id])

    return score


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
