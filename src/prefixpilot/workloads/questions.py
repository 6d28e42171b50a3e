"""Sets of questions over corpora, as public data sets give them, and how they become workloads.

A data set says which documents there are and what is asked of them; which documents go with a question is what a
retriever finds: BM25 here. Where a set brings what was found, that is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import BlockId, ContextBlock, Request, RequestId
from prefixpilot.errors import TraceError
from prefixpilot.workloads.base import Workload, WorkloadRequest

PASSAGE_TOKENS: Final = 1024
"""Of a passage at most, estimated."""
ARRIVAL_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: unique in its set.
        answers: reference answers, the best first; empty if the set says that there is none.
        evidence: blocks that hold the answer, as far as the set says so.
        corpus: name of the corpus that is searched.
        session: whose turn it is; ``None``: it stands alone.
        found: what was retrieved already, most relevant first; ``None``: it is to be searched for.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    evidence: tuple[BlockId, ...] = ()
    corpus: str = ""
    session: str | None = None
    found: tuple[ContextBlock, ...] | None = None


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A data set.

    Attributes:
        name: of it.
        corpora: blocks by the name of the corpus.
        questions: those of a session in their order.
    """

    name: str
    corpora: Mapping[str, Sequence[ContextBlock]]
    questions: Sequence[Question]

    def workload(self, where: str, k: int) -> Workload:
        """The questions with the ``k`` blocks found for each; sessions take turns at random, by a fixed seed.

        Args:
            where: for messages.

        Raises:
            TraceError: there is no question.
            MissingExtraError: blocks are to be searched for, and ``bm25s`` is not installed.
        """
        if not self.questions:
            raise TraceError(where, "holds no question", f"give the files of {self.name}, see its documentation")
        found = self._found(k)
        turns: dict[str, int] = {}
        requests = []
        for question in _taking_turns(self.questions):
            session = question.session or question.id
            turn = turns[session] = turns.get(session, -1) + 1
            request = Request(found[question.id][:k], RequestId(question.id))
            asked, answers, evidence = question.text, question.answers, question.evidence
            requests.append(WorkloadRequest(request, session, turn, where, None, asked, answers, evidence))
        return Workload(self.name, tuple(requests))

    def _found(self, k: int) -> dict[str, tuple[ContextBlock, ...]]:
        found = {question.id: question.found for question in self.questions if question.found is not None}
        wanted: dict[str, list[Question]] = {}
        for question in self.questions:
            if question.found is None:
                wanted.setdefault(question.corpus, []).append(question)
        if wanted:
            from prefixpilot.retrievers.bm25 import BM25Retriever
        for corpus, questions in wanted.items():
            searched = BM25Retriever.build(self.corpora[corpus], progress=True)
            results = searched.retrieve_batch([question.text for question in questions], k)
            found.update({q.id: result.blocks for q, result in zip(questions, results, strict=True)})
        return found


def _taking_turns(questions: Sequence[Question]) -> Iterator[Question]:
    """In random order, those of a session in theirs: in the files, questions about one document stand together."""
    queues: dict[str, list[Question]] = {}
    for question in questions:
        queues.setdefault(question.session or question.id, []).append(question)
    order = [name for name, queue in queues.items() for _ in queue]
    Random(ARRIVAL_SEED).shuffle(order)
    heads = {name: iter(queue) for name, queue in queues.items()}
    yield from (next(heads[name]) for name in order)


def passages(paragraphs: Iterable[str], limit: int = PASSAGE_TOKENS) -> list[str]:
    """Paragraphs packed into passages of at most ``limit`` tokens (estimated); a longer one is cut between words.

    >>> passages(["one two", "three"], limit=100)
    ['one two\\n\\nthree']
    """
    packed: list[str] = []
    for paragraph in paragraphs:
        for piece in _pieces(paragraph.strip(), limit):
            joined = f"{packed[-1]}\n\n{piece}" if packed else piece
            if packed and estimate_tokens(joined) <= limit:
                packed[-1] = joined
            else:
                packed.append(piece)
    return packed


def _pieces(text: str, limit: int) -> Iterator[str]:
    while estimate_tokens(text) > limit:
        share = limit / estimate_tokens(text)
        cut = text.rfind(" ", 0, max(2, int(len(text) * share)))
        if cut <= 0:
            break
        yield text[:cut].rstrip()
        text = text[cut:].lstrip()
    if text:
        yield text


def blocks_of(name: str, texts: Iterable[str], title: str | None = None) -> list[ContextBlock]:
    """Passages of a document as blocks, named ``NAME/0`` and so on."""
    return [ContextBlock(text=text, id=f"{name}/{i}", title=title) for i, text in enumerate(texts)]


def holding(blocks: Iterable[ContextBlock], texts: Iterable[str]) -> tuple[BlockId, ...]:
    """Names of the blocks in which one of the texts stands word for word, whatever the white space."""
    wanted = [" ".join(text.split()) for text in texts if text.strip()]
    named = ((block.id, " ".join((block.text or "").split())) for block in blocks)
    return tuple(name for name, text in named if name is not None and any(piece in text for piece in wanted))


class Entry:
    """One object of a data set's file, read field by field; errors say where.

    Args:
        where: file and place.
        value: what stands there.

    Raises:
        TraceError: it is no object.
    """

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise TraceError(where, f"is {type(value).__name__}, not an object", "give the file as it is published")
        self.where = where
        self._value = value

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A string, or a number as one; ``default`` where it is missing."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, str | int | float):
            raise self._error(name, "a string", value)
        return str(value)

    def flag(self, name: str) -> bool | None:
        """``True``, ``False``, or ``None`` for neither."""
        value = self._value.get(name)
        return value if isinstance(value, bool) else None

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty where it is missing."""
        value = self._value.get(name)
        items = [] if value is None else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self._error(name, "a list of strings", value)
        return list(items)

    def entries(self, name: str) -> list[Entry]:
        """A list of objects; empty where it is missing."""
        value = self._value.get(name)
        items = [] if value is None else value
        if not isinstance(items, list):
            raise self._error(name, "a list", value)
        return [Entry(f"{self.where}.{name}[{i}]", item) for i, item in enumerate(items)]

    def entry(self, name: str) -> Entry:
        """An object."""
        return Entry(f"{self.where}.{name}", self._value.get(name))

    def named(self) -> Iterator[tuple[str, Entry]]:
        """Its members, each an object."""
        return ((str(name), Entry(f"{self.where}.{name}", value)) for name, value in self._value.items())

    def _error(self, name: str, wanted: str, value: Any) -> TraceError:
        found = "is missing" if value is None else f"is {type(value).__name__}"
        return TraceError(f"{self.where}.{name}", found, f"it should be {wanted}: give the file as it is published")
