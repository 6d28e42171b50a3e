"""Agents: every block is read once, in an order that a small cache serves; the paper's 15 agents; fan-out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rag.support import document, sent

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.rag import ChainOfAgents, fan_out, lay_chains
from prefixpilot.rag.agents import ReadingOrder
from prefixpilot.rag.team import WORKER
from prefixpilot.testing import Respond, SimulatedEngine

contexts_of_ids = st.lists(st.lists(st.integers(0, 12), max_size=9), max_size=8)
orders = st.sampled_from(["shared", "given"])


def blocks(ids: Sequence[int]) -> list[ContextBlock]:
    return [ContextBlock(f"text {i}") for i in ids]


@given(contexts_of_ids, st.integers(1, 6), orders)
def test_every_block_is_read_once_by_one_worker_and_chains_keep_their_order(
    contexts: list[list[int]], workers: int, order: ReadingOrder
) -> None:
    chains = lay_chains([blocks(ids) for ids in contexts], workers, order)
    for question, ids in enumerate(contexts):
        own = [step for step in chains.steps if step.question == question]
        assert [step.worker for step in own] == list(range(chains.lengths[question]))
        assert len(own) <= workers and all(step.blocks for step in own)
        sizes = [len(step.blocks) for step in own]
        assert not sizes or max(sizes) - min(sizes) <= 1
        read = [str(block.text) for step in own for block in step.blocks]
        distinct = list(dict.fromkeys(f"text {i}" for i in ids))
        assert (read if order == "given" else sorted(read)) == (distinct if order == "given" else sorted(distinct))


@given(contexts_of_ids)
def test_one_block_a_worker_each_prefix_is_used_up_before_the_next(contexts: list[list[int]]) -> None:
    chains = lay_chains([blocks(ids) for ids in contexts], 100)
    texts = [step.blocks[0].text for step in chains.steps]
    changes = sum(a != b for a, b in itertools.pairwise(texts))
    assert changes == max(0, len(set(texts)) - 1)


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="workers"):
        lay_chains([], 0)
    with pytest.raises(ConfigError, match="order"):
        lay_chains([], 1, "any")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="client"):
        ChainOfAgents([], model="m")


# -- the paper's case

WORKERS = 15
NOTES = "The notes say that what was asked for stands in one of the documents read so far, which names a number."


def questions(count: int = 24, corpus: int = 60) -> tuple[list[str], list[list[str]]]:
    """Each over 15 of the documents, by a popularity like that of MultihopRAG's: most are wanted by few."""
    random = Random(7)
    texts = [document(i, 90) for i in range(corpus)]
    weights = [1 / (rank + 5) for rank in range(corpus)]
    contexts: list[list[str]] = []
    for _ in range(count):
        chosen: list[str] = []
        while len(chosen) < WORKERS:
            (text,) = random.choices(texts, weights)
            if text not in chosen:
                chosen.append(text)
        contexts.append(chosen)
    return [f"Question {i}: which number does it name?" for i in range(count)], contexts


@contextmanager
def engines(count: int, cache_tokens: int | None) -> Iterator[tuple[list[SimulatedEngine], list[openai.OpenAI]]]:
    with ExitStack() as stack:
        running, clients = [], []
        for _ in range(count):
            cache = RadixPrefixCache(cache_tokens)
            engine = stack.enter_context(SimulatedEngine(cache=cache, reply=lambda body: NOTES))
            made = openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0)
            running.append(engine)
            clients.append(stack.enter_context(made))
        yield running, clients


def without_us(clients: Sequence[openai.OpenAI], asked: list[str], contexts: list[list[str]]) -> int:
    """[system][segment][notes][question], question after question, replicas by turns. Returns tokens prefilled."""
    prefilled = calls = 0
    for question, context in zip(asked, contexts, strict=True):
        notes: list[str] = []
        for segment in [*context, None]:
            read = [] if segment is None else [f"[Doc 1]\n{segment}"]
            user = "\n\n".join([*read, *(f"Notes: {note}" for note in notes), f"Question: {question}"])
            system = WORKER if segment is not None else "Answer from the notes."
            messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            reply = clients[calls % len(clients)].chat.completions.create(model="m", messages=messages)
            notes, calls = [reply.choices[0].message.content or ""], calls + 1
            assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
            prefilled += reply.usage.prompt_tokens - (reply.usage.prompt_tokens_details.cached_tokens or 0)
    return prefilled


def with_us(clients: Sequence[openai.OpenAI], asked: list[str], contexts: list[list[str]], **settings: Any) -> int:
    team = ChainOfAgents(clients, model="m", workers=WORKERS, **settings)
    answers = team.answer(asked, contexts)
    assert [answer.question for answer in answers] == asked
    assert all(answer.text == NOTES and answer.notes == (NOTES,) * WORKERS for answer in answers)
    return sum(answer.usage.prefilled_tokens or 0 for answer in answers)


def test_fifteen_agents_prefill_1_8_times_less_in_a_cache_smaller_than_the_corpus() -> None:
    """Scaled down: 60 documents of 275 tokens, the cache holds 40 % of them. A question reads a quarter of them here, a
    fortieth of MultihopRAG: at full size one card of 48 GB will do (tests/bench/test_chain_of_agents.py)."""
    asked, contexts = questions()
    with engines(1, 6600) as (_, clients):
        before = without_us(clients, asked, contexts)
    with engines(1, 6600) as (running, clients):
        after = with_us(clients, asked, contexts)
        read = "".join(message["content"] for messages in sent(running[0]) for message in messages)
        assert all(read.count(text) == sum(text in c for c in contexts) for c in contexts for text in c)
    assert before >= 1.8 * after


def test_where_the_cache_holds_the_corpus_nothing_is_lost() -> None:
    """There the program without us has every hit there is; ours may cost no more than its own words."""
    asked, contexts = questions(6)
    with engines(1, None) as (_, clients):
        before = without_us(clients, asked, contexts)
    with engines(1, None) as (_, clients):
        after = with_us(clients, asked, contexts)
    assert after <= before * 1.03


def test_replicas_are_given_what_they_have_read() -> None:
    asked, contexts = questions(8, 30)
    with engines(3, None) as (_, clients):
        before = without_us(clients, asked, contexts)
    with engines(3, None) as (running, clients):
        after = with_us(clients, asked, contexts)
        homes: dict[str, set[int]] = {}
        for number, engine in enumerate(running):
            assert engine.chats
            for messages in sent(engine):
                head = messages[1]["content"].split("\n\n")[0]
                if head.startswith("[Doc 1]"):
                    homes.setdefault(head, set()).add(number)
        assert all(len(numbers) == 1 for numbers in homes.values())
    assert before >= 1.5 * after


def test_a_chain_hands_its_notes_on_and_the_manager_reads_the_last() -> None:
    with engines(1, None) as (running, clients):
        running[0].reply = lambda body: body["messages"][1]["content"].split("\n\n")[0][-1] + "!"
        answers = ChainOfAgents(clients[0], model="m", workers=2, order="given", concurrency=1).answer(
            ["Q?", "Nothing?"], [["B", "A", "B"], []]
        )
        assert [(a.text, a.notes) for a in answers] == [("!!", ("B!", "A!")), ("?!", ())]
        users = [messages[1]["content"] for messages in sent(running[0])]
    assert users == [
        "[Doc 1]\nB\n\nQuestion: Q?",
        "[Doc 1]\nA\n\nNotes: B!\n\nQuestion: Q?",
        "Notes: A!\n\nQuestion: Q?",
        "Question: Nothing?",
    ]


def test_a_call_that_fails_ends_the_run(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    engine.fault = Respond(status=400, body=b"{}")
    with pytest.raises(openai.BadRequestError):
        ChainOfAgents(client, model="m").answer(["Q?"] * 3, [["A", "B"]] * 3)
    with pytest.raises(openai.BadRequestError):
        fan_out(client, ["T"], ["A"], model="m")
    with pytest.raises(InvalidRequestError, match="blocks"):
        fan_out(client, ["T"], "A", model="m")
    with pytest.raises(InvalidRequestError, match=r"blocks: have a pin"):
        fan_out(client, ["T"], [{"text": "A", "pin": "first"}], model="m")
    with pytest.raises(InvalidRequestError, match=r"worker_count: .*"):
        ChainOfAgents(client, model="m", worker_count=3)
    with pytest.raises(ConfigError, match="concurrency"):
        fan_out(client, ["T"], ["A"], model="m", concurrency=0)


# -- fan-out


def test_a_shared_corpus_is_prefilled_once(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    corpus = [document(i, 60) for i in range(5)]
    tasks = [f"As reader {i}, name what is missing." for i in range(10)]
    answers = fan_out(client, tasks, corpus, model="m")
    assert [answer.question for answer in answers] == tasks
    whole = answers[0].usage.prompt_tokens or 0
    assert sum(answer.usage.prefilled_tokens or 0 for answer in answers) < 1.5 * whole
    heads = {messages[1]["content"].rpartition("\n\n")[0] for messages in sent(engine)}
    assert len(heads) == 1 and all(text in heads.pop() for text in corpus[:1])
