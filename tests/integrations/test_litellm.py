"""LiteLLM as installed: the callback in the library, its router, and its proxy as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.small_rag import DOCUMENTS, QUERIES, assert_one_conversation, found, missing, prefilled_tokens

from prefixpilot.testing import SimulatedEngine

pytestmark = pytest.mark.integrations
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
pytest.importorskip("litellm", reason="run `make test-integrations`")

import litellm  # noqa: E402

from prefixpilot.adapters.litellm import PrefixPilotCallback  # noqa: E402

UP_S = 300
KEY = f"sk-{secrets.token_hex(32)}"


@pytest.fixture
def callback() -> Iterator[PrefixPilotCallback]:
    made = PrefixPilotCallback()
    litellm.callbacks = [made]
    yield made
    litellm.logging_callback_manager._reset_all_callbacks()


def at(engine: SimulatedEngine) -> dict[str, Any]:
    return {"model": "openai/simulated", "api_base": f"{engine.base_url}/v1", "api_key": "unused"}


async def ask(engine: SimulatedEngine, planned: bool) -> None:
    for query in QUERIES:
        if planned:
            messages: dict[str, Any] = {"messages": [{"role": "user", "content": query.question}]}
            messages["context_blocks"] = found(query)
        else:
            content = "\n\n".join([*found(query), query.question])
            messages = {"messages": [{"role": "user", "content": content}]}
        await litellm.acompletion(**at(engine), **messages)


def test_the_library_prefills_less_with_the_same_evidence(callback: PrefixPilotCallback) -> None:
    with SimulatedEngine() as without, SimulatedEngine() as engine:
        asyncio.run(ask(without, planned=False))
        asyncio.run(ask(engine, planned=True))
    assert missing(engine) == missing(without) == []
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)
    assert all("context_blocks" not in request.json() for request in engine.chats)
    assert without.chats[0].json()["messages"][0]["content"].startswith(DOCUMENTS[0]), "what has no blocks passes"


async def converse(engine: SimulatedEngine, complete: Any) -> None:
    history: list[Any] = []
    for query in QUERIES:
        history.append({"role": "user", "content": query.question})
        answer = await complete(
            messages=history, context_blocks=found(query), metadata={"session_id": "chat-1"}, stream=True
        )
        text = "".join([piece.choices[0].delta.content or "" async for piece in answer])
        history.append({"role": "assistant", "content": text})


def test_a_session_is_a_conversation(callback: PrefixPilotCallback) -> None:
    with SimulatedEngine() as engine:
        asyncio.run(converse(engine, lambda **more: litellm.acompletion(**at(engine), **more)))
    assert_one_conversation(engine)


def _says(reply: str, body: Any) -> str:
    return reply


@pytest.mark.parametrize("stream", [False, True])
def test_branches_are_told_apart_by_their_replies(callback: PrefixPilotCallback, stream: bool) -> None:
    async def talk(engine: SimulatedEngine) -> None:
        for document, reply in ((DOCUMENTS[0], "First."), (DOCUMENTS[1], "Second.")):
            engine.reply = partial(_says, reply)
            answer = await litellm.acompletion(
                **at(engine),
                messages=[{"role": "user", "content": "Q1"}],
                context_blocks=[document],
                litellm_session_id="s",
                stream=stream,
            )
            if stream:
                async for _ in answer:
                    pass
        for _ in range(200):  # LiteLLM tells of answers beside the calls
            if not callback._waiting:
                break
            await asyncio.sleep(0.05)
        history = [
            {"role": "user", "content": "Q1"},
            {"role": "assistant", "content": "First."},
            {"role": "user", "content": "Q2"},
        ]
        await litellm.acompletion(**at(engine), messages=history, litellm_session_id="s")

    with SimulatedEngine() as engine:
        asyncio.run(talk(engine))
    first, _, last = (request.json()["messages"] for request in engine.chats)
    assert last[0] == first[0] and DOCUMENTS[0] in last[0]["content"]


def test_the_router(callback: PrefixPilotCallback) -> None:
    with SimulatedEngine() as engine:
        router = litellm.Router([{"model_name": "ours", "litellm_params": at(engine)}])
        asyncio.run(converse(engine, lambda **more: router.acompletion(model="ours", **more)))
    assert_one_conversation(engine)


def test_responses(callback: PrefixPilotCallback) -> None:
    with SimulatedEngine() as engine:
        asyncio.run(litellm.aresponses(**at(engine), input="Q?", context_blocks=["A document."]))
        body = engine.requests[-1].json()
    assert "[Doc 1]\nA document.\n\nQ?" in json.dumps(body["input"]).replace("\\n", "\n")
    assert "context_blocks" not in body


def test_messages_and_completions(callback: PrefixPilotCallback) -> None:
    async def ask(engine: SimulatedEngine) -> None:
        await litellm.anthropic.messages.acreate(
            model="anthropic/simulated",
            api_base=engine.base_url,
            api_key="unused",
            max_tokens=16,
            messages=[{"role": "user", "content": "Q?"}],
            context_blocks=["A document."],
        )
        await litellm.atext_completion(
            model="text-completion-openai/simulated",
            api_base=f"{engine.base_url}/v1",
            api_key="unused",
            prompt="Q?",
            context_blocks=["A document."],
        )

    with SimulatedEngine() as engine:
        asyncio.run(ask(engine))
        messages, completion = (request.json() for request in engine.requests)
    assert "[Doc 1]\\nA document.\\n\\nQ?" in json.dumps(messages["messages"])
    assert "[Doc 1]\\nA document.\\n\\nQ?" in json.dumps(completion["prompt"])
    assert "context_blocks" not in messages and "context_blocks" not in completion


def test_calls_that_are_not_async() -> None:
    callback = PrefixPilotCallback()
    with SimulatedEngine() as engine:
        messages = [{"role": "user", "content": "Q?"}]
        callback.completion(**at(engine), messages=messages, context_blocks=["A document."])
        assert engine.chats[-1].json()["messages"][0]["content"] == "[Doc 1]\nA document.\n\nQ?"
        callback.responses(**at(engine), input="Q?", context_blocks=["A document."])
        assert engine.requests[-1].json()["input"] == "[Doc 1]\nA document.\n\nQ?"


def test_blocks_that_cannot_be_used_are_a_bad_request(callback: PrefixPilotCallback) -> None:
    with SimulatedEngine() as engine, pytest.raises(litellm.BadRequestError, match=r"context_blocks\[1\].text"):
        messages = [{"role": "user", "content": "Q?"}]
        asyncio.run(litellm.acompletion(**at(engine), messages=messages, context_blocks=["A", {"id": 1}]))
    assert not engine.chats


# -- the proxy


CONFIG = """
model_list:
  - model_name: our-model
    litellm_params: {model: openai/simulated, api_base: ENGINE/v1, api_key: unused}
litellm_settings:
  callbacks: prefixpilot.adapters.litellm.callback
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[str, SimulatedEngine]]:
    with SimulatedEngine() as engine:
        (tmp_path / "config.yaml").write_text(CONFIG.replace("ENGINE", engine.base_url))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [str(Path(sys.executable).parent / "litellm"), "--config", "config.yaml"]
        log = (tmp_path / "log").open("wb")
        command += ["--host", "127.0.0.1", "--port", str(port)]
        environ = {**os.environ, "LITELLM_MASTER_KEY": KEY}
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, tmp_path / "log")
            yield url, engine
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
            log.close()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"LiteLLM's proxy is not up: {log.read_text(errors='replace')[-3000:]}")


def _post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_proxy(gateway: tuple[str, SimulatedEngine]) -> None:
    url, engine = gateway
    history: list[Any] = []
    for query in QUERIES:
        history.append({"role": "user", "content": query.question})
        body = {"model": "our-model", "messages": history, "context_blocks": found(query)}
        answer = _post(url, {**body, "litellm_session_id": "chat-1"})
        history.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert_one_conversation(engine)
    with pytest.raises(urllib.error.HTTPError) as refused:
        _post(url, {"model": "our-model", "messages": history[:1], "context_blocks": [{"id": 1}]})
    assert refused.value.code == 400 and "context_blocks[0].text" in refused.value.read().decode()
