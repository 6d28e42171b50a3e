"""Agents at work: Chain-of-Agents over many questions, and a fan-out of many tasks over one corpus."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from prefixpilot.blocks import block_identity
from prefixpilot.core import BlockId, ContextBlock, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import PARAGRAPH, render_blocks
from prefixpilot.rag.agents import ReadingOrder, lay_chains
from prefixpilot.rag.answers import Usage
from prefixpilot.rag.client import Client, Reply, arguments_of, check_options, complete
from prefixpilot.rag.desk import Blocks, as_blocks

WORKER: Final = (
    "You are one of several readers. Read your part of the source text and the notes of the readers before you, then "
    "write notes that hold what of both is needed to answer the question. Do not answer it yet."
)
MANAGER: Final = "Answer the question from the notes of your readers, who have read the whole source text."

_SETTINGS: Final = ("model", "workers", "order", "worker", "manager", "concurrency", "system")
MAX_HOMES: Final = 100_000
"""Blocks of which a team remembers where they were read; the one least recently used goes first."""


@dataclass(frozen=True, slots=True)
class TeamAnswer:
    """What a team made of one question, or an agent of one task.

    Attributes:
        notes: of each worker, in the order in which they read.
        usage: of all calls together.
    """

    question: str
    text: str
    notes: tuple[str, ...]
    usage: Usage


class _Desk:
    """Renders what agents read, and sends it to the replica that has it."""

    def __init__(self, clients: Client | Sequence[Client], model: str, options: dict[str, Any]) -> None:
        self._clients = [clients] if isinstance(clients, Client) else list(clients)
        if not self._clients:
            raise ConfigError("client", "is an empty list", "give at least one client")
        check_options(options, arguments_of(self._clients[0]), _SETTINGS)
        self._options = {"model": model, **options}
        self._pilot = ContextPilot()
        self._homes: OrderedDict[BlockId, int] = OrderedDict()
        self._sent = [0] * len(self._clients)

    def read(self, blocks: Sequence[ContextBlock]) -> str:
        """The blocks as they stand in a prompt, labelled from 1: equal blocks give equal bytes."""
        request = Request(tuple(blocks), RequestId("team"))
        return render_blocks(self._pilot.as_given(request))

    def client(self, first: ContextBlock | None = None) -> Client:
        """The replica that has had prompts which begin with this block; else the one with the fewest calls so far."""
        home = min(range(len(self._sent)), key=self._sent.__getitem__)
        if first is not None:
            block = block_identity(first)
            home = self._homes.setdefault(block, home)
            self._homes.move_to_end(block)
            if len(self._homes) > MAX_HOMES:
                self._homes.popitem(last=False)
        self._sent[home] += 1
        return self._clients[home]

    def call(self, client: Client, system: str, user: str) -> Reply:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return complete(client, {**self._options, "messages": messages})


class ChainOfAgents:
    """Workers read a question's blocks one after the other, each with the notes of the one before; a manager answers.

    What saves prefill is that many questions over one corpus are given together: see :mod:`prefixpilot.rag.agents`. For
    one question alone nothing is saved.

    Args:
        client: an ``openai.OpenAI``, or one for each replica of the engine: what begins with the same block then goes
            to the same replica.
        workers: at most so many for a question; each reads an equal share of its blocks.
        order: ``shared`` lets all chains read in one common order, which saves most; ``given`` keeps each question's
            own order, as pages of a document need it.
        worker, manager: system texts, the same for all: a name or a number in them would part the prompts.
        concurrency: calls at a time.
        options: arguments of ``chat.completions.create`` for all calls.
    """

    def __init__(
        self,
        client: Client | Sequence[Client],
        *,
        model: str,
        workers: int = 15,
        order: ReadingOrder = "shared",
        worker: str = WORKER,
        manager: str = MANAGER,
        concurrency: int = 8,
        **options: Any,
    ) -> None:
        self._desk = _Desk(client, model, options)
        self._workers = workers
        self._order: ReadingOrder = order
        self._worker = worker
        self._manager = manager
        self._concurrency = checked(concurrency)

    def answer(self, questions: Sequence[str], contexts: Sequence[Blocks]) -> list[TeamAnswer]:
        """One answer for each question, in the order given.

        Args:
            contexts: the blocks of each question, most relevant first or in reading order.

        Raises:
            ConfigError: ``workers`` or ``order``.
            InvalidRequestError: blocks that cannot be used.
            openai.OpenAIError, EngineError: a call failed; the run ends with it.
        """
        chains = lay_chains([as_blocks(blocks) for blocks in contexts], self._workers, self._order)
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="team") as pool:
            try:
                run = _Run(self._desk, pool, questions)
                for step in chains.steps:
                    run.submit(step.question, self._worker, step.blocks)
                    if len(run.chains[step.question]) == chains.lengths[step.question]:
                        run.submit(step.question, self._manager)
                for question, length in enumerate(chains.lengths):
                    if not length:
                        run.submit(question, self._manager)
                return list(map(_team_answer, questions, run.chains))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class _Run:
    """The calls of many chains. A call waits for the one before it in its chain, which was handed in before it: so the
    oldest call that is not over never waits for one that has not begun.

    Attributes:
        chains: the replies of each question's calls; the manager's is the last.
    """

    def __init__(self, desk: _Desk, pool: ThreadPoolExecutor, questions: Sequence[str]) -> None:
        self._desk = desk
        self._pool = pool
        self._questions = questions
        self.chains: list[list[Future[Reply]]] = [[] for _ in questions]

    def submit(self, question: int, system: str, blocks: Sequence[ContextBlock] = ()) -> None:
        """The next call of a question's chain."""
        chain = self.chains[question]
        client = self._desk.client(blocks[0] if blocks else None)
        chain.append(self._pool.submit(self._call, client, system, blocks, chain[-1:], self._questions[question]))

    def _call(
        self,
        client: Client,
        system: str,
        blocks: Sequence[ContextBlock],
        before: Sequence[Future[Reply]],
        question: str,
    ) -> Reply:
        read = [self._desk.read(blocks)] if blocks else []
        notes = [f"Notes: {reply.result().text}" for reply in before]
        return self._desk.call(client, system, PARAGRAPH.join([*read, *notes, f"Question: {question}"]))


def fan_out(
    client: Client | Sequence[Client],
    tasks: Sequence[str],
    blocks: Blocks,
    *,
    model: str,
    system: str = "Do the task with the documents at hand.",
    concurrency: int = 8,
    **options: Any,
) -> list[TeamAnswer]:
    """Many agents at once over one shared corpus: what they share comes first, then each one's task.

    The first call goes alone, so that the others find the corpus in the cache. An agent's role belongs into its task,
    behind the documents: in front of them it would part the prompts. Of several replicas one serves all.

    Raises:
        InvalidRequestError: blocks that cannot be used.
        openai.OpenAIError, EngineError: a call failed.
    """
    concurrency = checked(concurrency)
    desk = _Desk(client, model, options)
    read = desk.read(as_blocks(blocks))
    home = desk.client()

    def one(task: str) -> TeamAnswer:
        reply = desk.call(home, system, PARAGRAPH.join([read, task]))
        return TeamAnswer(task, reply.text, (), reply.usage)

    first = [one(task) for task in tasks[:1]]
    with ThreadPoolExecutor(concurrency, thread_name_prefix="agents") as pool:
        return [*first, *pool.map(one, tasks[1:])]


def checked(concurrency: int) -> int:
    """Raises ``ConfigError`` unless it is an int of 1 or more."""
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigError("concurrency", f"is {concurrency!r}", "use an int of 1 or more")
    return concurrency


def _team_answer(question: str, chain: Sequence[Future[Reply]]) -> TeamAnswer:
    replies = [reply.result() for reply in chain]
    usage = reduce(Usage.plus, [reply.usage for reply in replies])
    return TeamAnswer(question, replies[-1].text, tuple(reply.text for reply in replies[:-1]), usage)
