"""``run_batch``: planned once, run in the planned order, resumed without doing anything twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rag.support import document, prompt_tokens, sent

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.bench import Rendering, simulate
from prefixpilot.errors import ConfigError, EngineError, InvalidRequestError, TraceError
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.rag import BatchRequest, arun_batch, run_batch
from prefixpilot.rag.journal import Done, Journal
from prefixpilot.testing import Respond, SimulatedEngine
from prefixpilot.testing.chat_wire import tokenize
from prefixpilot.workloads import Workload, WorkloadRequest

TEXTS = [document(i, 40) for i in range(24)]


def requests(count: int = 40) -> list[BatchRequest]:
    """Each over four documents; neighbours in the list share none, but every sixth request has the same ones."""
    made = []
    for n in range(count):
        group = n % 6
        named = [(4 * group + (i + n) % 4) for i in range(4)]
        made.append(BatchRequest.asking(f"r{n}", f"What of number {n}?", [TEXTS[i] for i in named], "Be short."))
    return made


def echo(body: Any) -> str:
    """The number that the question names."""
    question: str = body["messages"][-1]["content"]
    return question.rpartition("number ")[2].rstrip("?")


def test_results_come_in_the_callers_order_and_calls_in_the_planned_one(
    engine: SimulatedEngine, client: openai.OpenAI
) -> None:
    engine.reply = echo
    results = run_batch(client, requests(), concurrency=1, model="m", progress=False)
    assert [(r.request_id, r.text, r.error) for r in results] == [(f"r{n}", str(n), None) for n in range(40)]
    ran = [echo(chat.json()) for chat in engine.chats]
    groups = [int(n) % 6 for n in ran]
    assert len([i for i in range(1, 40) if groups[i] != groups[i - 1]]) == 5  # those that share ran together
    for chat in engine.chats:  # no evidence lost
        n = int(echo(chat.json()))
        assert all(TEXTS[4 * (n % 6) + i] in chat.json()["messages"][-1]["content"] for i in range(4))


def test_fewer_tokens_are_prefilled_than_in_the_given_order(client: openai.OpenAI) -> None:
    def prefilled(run: Any) -> int:
        with SimulatedEngine(cache=RadixPrefixCache(3000)) as engine:
            with openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0) as own:
                run(own)
            cached = sum(_cached(chat) for chat in _usages(engine))
            return prompt_tokens(engine) - cached

    def _usages(engine: SimulatedEngine) -> Any:
        return usages

    def _cached(usage: Any) -> int:
        return int(usage.prompt_tokens_details.cached_tokens)

    usages: list[Any] = []

    def plain(own: openai.OpenAI) -> None:
        for request in requests():
            context = "\n\n".join(block.text or "" for block in request.blocks)
            messages: Any = [request.messages[0], {"role": "user", "content": f"{context}\n\nQ{request.request_id}"}]
            usages.append(own.chat.completions.create(model="m", messages=messages).usage)

    def ours(own: openai.OpenAI) -> None:
        usages.clear()
        for result in run_batch(own, requests(), model="m", progress=False):
            assert result.response is not None
            usages.append(openai.types.CompletionUsage.model_validate(result.response["usage"]))

    before = prefilled(plain)
    assert prefilled(ours) < before / 3


def test_the_hit_rate_is_that_of_replay() -> None:
    """Within a point, for a cache of the same size and the same words."""
    size, total = 4000, 0
    count = [len(tokenize(f"\n{text}")) for text in TEXTS]
    blocks = [ContextBlock(text, id=i, tokens=count[i]) for i, text in enumerate(TEXTS)]
    entries, asked = [], []
    for n in range(120):
        chosen = tuple(blocks[(n * 7 + i * i * (1 + n % 3)) % 24] for i in range(5))
        chosen = tuple(dict.fromkeys(chosen))
        entries.append(WorkloadRequest(Request(chosen, f"r{n}"), f"r{n}", 0, ""))  # type: ignore[arg-type]
        asked.append(BatchRequest.asking(f"r{n}", f"What of number {n}?", chosen, "Be short."))
    config = PilotConfig(annotate=0)  # whose lengths are estimated there, and counted here
    with (
        SimulatedEngine(cache=RadixPrefixCache(size)) as engine,
        openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="k") as client,
    ):
        results = run_batch(client, asked, model="m", pilot=ContextPilot(config), progress=False, concurrency=4)
    cached = sum(result.usage.cached_tokens or 0 for result in results)
    total = sum(result.usage.prompt_tokens or 0 for result in results)
    head, question = (
        len(tokenize("<|system|>\nBe short.\n<|user|>\n")),
        len(tokenize("\n\nWhat of number 99?\n<|assistant|>\n")),
    )
    rendering = Rendering(head_tokens=head, question_tokens=question, label_tokens=len(tokenize("\n\n[Doc 1]")))
    replayed = simulate(
        Workload("w", tuple(entries)), "offline", RadixPrefixCache(size), config=config, rendering=rendering
    )
    assert cached / total == pytest.approx(replayed.result.hit_rate, abs=0.01)
    assert cached / total > 0.3


def test_the_async_twin_does_the_same(engine: SimulatedEngine, client: openai.OpenAI, tmp_path: Path) -> None:
    import asyncio

    engine.reply = echo
    sync = run_batch(client, requests(), model="m", concurrency=1, progress=False)
    ran = sent(engine)

    async def both() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0) as own:
            alone = await arun_batch(own, requests(), model="m", concurrency=1, progress=False)
            beside = await arun_batch(own, requests(), model="m", done=tmp_path / "d", progress=False)
            again = await arun_batch(own, requests(), model="m", done=tmp_path / "d", progress=False)
            return alone, beside, again

    alone, beside, again = asyncio.run(both())
    assert [r.text for r in sync] == [r.text for r in alone] == [r.text for r in beside] == [r.text for r in again]
    assert sent(engine)[40:80] == ran
    assert len(engine.chats) == 120


# -- resuming


def test_what_is_done_is_not_done_again(engine: SimulatedEngine, client: openai.OpenAI, tmp_path: Path) -> None:
    done = tmp_path / "done.jsonl"
    first = run_batch(client, requests(), model="m", done=done, progress=False)
    assert run_batch(client, requests(), model="m", done=done, progress=False) == first
    assert len(engine.chats) == 40
    more = [*requests(), BatchRequest.asking("new", "And number 41?", [{"text": "A"}])]
    results = run_batch(client, more, model="m", done=done, progress=False)
    assert [result.resumed for result in results] == [True] * 40 + [False]
    assert len(engine.chats) == 41


def test_calls_that_failed_are_told_and_made_again(
    engine: SimulatedEngine, client: openai.OpenAI, tmp_path: Path
) -> None:
    done = tmp_path / "done.jsonl"
    engine.fault = Respond(status=400, body=b'{"error": {"message": "too long"}}')
    first = run_batch(client, requests(5), model="m", done=done, progress=False)
    assert all(r.text is None and "too long" in (r.error or "") and r.usage.prompt_tokens is None for r in first)
    engine.fault = None
    second = run_batch(client, requests(5), model="m", done=done, progress=False)
    assert [r.error for r in second] == [None] * 5
    assert run_batch(client, requests(5), model="m", done=done, progress=False) == second
    assert len(engine.chats) == 10


def test_a_run_ends_when_the_engine_is_gone(client: openai.OpenAI, engine: SimulatedEngine, tmp_path: Path) -> None:
    engine.fault = Respond(status=500, body=b"{}")
    with pytest.raises(EngineError, match="20 calls in a row"):
        run_batch(client, requests(), model="m", done=tmp_path / "d", concurrency=2, progress=False)
    assert 20 <= len(engine.chats) <= 22


@pytest.mark.parametrize("change", ["question", "block", "option"])
def test_a_request_that_changed_is_named(
    engine: SimulatedEngine, client: openai.OpenAI, tmp_path: Path, change: str
) -> None:
    done, given, model = tmp_path / "d", requests(3), "m"
    run_batch(client, given, done=done, progress=False, model=model)
    if change == "question":
        given[1] = BatchRequest.asking("r1", "Another?", given[1].blocks, "Be short.")
    elif change == "block":
        given[1] = BatchRequest.asking("r1", "What of number 1?", [*given[1].blocks, "B"], "Be short.")
    else:
        model = "n"
    with pytest.raises(InvalidRequestError, match=r"requests\[\d\].* is not what it was") as caught:
        run_batch(client, given, done=done, progress=False, model=model)
    assert caught.value.field == ("requests[0]" if change == "option" else "requests[1]")
    assert len(engine.chats) == 3


def test_two_runs_on_one_file_are_refused(client: openai.OpenAI, tmp_path: Path) -> None:
    with Journal(tmp_path / "d"), pytest.raises(ConfigError, match="is in use"):
        run_batch(client, requests(1), model="m", done=tmp_path / "d", progress=False)
    run_batch(client, requests(1), model="m", done=tmp_path / "d", progress=False)


def test_a_file_that_is_none_of_ours(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "d"
    for text in ("not JSON\n", '{"a": 1}\n', "[]\n", '{"request_id": "r", "digest": "d"}\n'):
        path.write_text(text)
        with pytest.raises(TraceError, match=":1"):
            run_batch(client, requests(1), model="m", done=path, progress=False)
        assert path.read_text() == text
    with pytest.raises(ConfigError, match=r"^done"):
        run_batch(client, requests(1), model="m", done=tmp_path / "no" / "d", progress=False)


@given(st.integers(0, 400))
def test_a_last_line_without_an_end_is_cut_off(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        lines = [Done(f"r{i}", "ab", response={"text": "é\u2028" * i}) for i in range(3)] + [
            Done("r3", "cd", error="no")
        ]
        with Journal(path) as journal:
            for line in lines:
                journal.write(line)
        whole = path.read_bytes()
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            ended = whole[:cut].count(b"\n")
            assert list(journal.done.values()) == lines[:ended]
            for line in lines[ended:]:
                journal.write(line)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("requests_", [[BatchRequest("a", ({"role": "system", "content": "S"},))]])
def test_requests_that_cannot_be_used(client: openai.OpenAI, requests_: Sequence[BatchRequest]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^temprature: .*did you mean temperature"):
        run_batch(client, requests(1), model="m", temprature=0, progress=False)
    with pytest.raises(InvalidRequestError, match=r"requests\[0\].messages"):
        run_batch(client, requests_, model="m", progress=False)
    with pytest.raises(InvalidRequestError, match=r"requests\[1\].request_id"):
        run_batch(client, requests(1) * 2, model="m", progress=False)
    with pytest.raises(InvalidRequestError, match=r"requests\[0\].blocks"):
        run_batch(client, [BatchRequest("a", requests(1)[0].messages, (ContextBlock(id=1),))], model="m")
    with pytest.raises(ConfigError, match="concurrency"):
        run_batch(client, requests(1), model="m", concurrency=0)


RUNNER = """
import sys, openai
from tests.rag.test_batch import requests
from prefixpilot.rag import run_batch
client = openai.OpenAI(base_url=sys.argv[1], api_key="k")
print([r.text for r in run_batch(client, requests(), model="m", done=sys.argv[2], concurrency=3)])
"""


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
def test_killed_at_half_and_resumed(engine: SimulatedEngine, tmp_path: Path) -> None:
    """Nothing is missing, and nothing that was answered is asked again: by the engine's own log."""
    engine.reply = echo
    engine.delay_s = 0.02
    command = [sys.executable, "-c", RUNNER, f"{engine.base_url}/v1", str(tmp_path / "d")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        assert engine.wait_for_requests(20, timeout_s=60)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    kept = {json.loads(line)["request_id"] for line in (tmp_path / "d").read_text().split("\n") if line.endswith("}")}
    before = [echo(chat.json()) for chat in engine.chats]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == f"{[str(n) for n in range(40)]}\n"
    after = [echo(chat.json()) for chat in engine.chats][len(before) :]
    assert 15 < len(kept) < 40
    assert {f"r{n}" for n in after} == {f"r{n}" for n in range(40)} - kept
    twice = [n for n, times in Counter(before + after).items() if times > 1]
    assert len(twice) <= 3 and all(f"r{n}" not in kept for n in twice)
