"""The application on a real Ray Serve, over loopback sockets, before simulated engines in this process."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest
from tests.proxy.redis_server import RedisServer

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Stall

ray = pytest.importorskip("ray", reason="Ray is not installed (make test-ray)")
from ray import serve  # noqa: E402

from prefixpilot.ray import app, engines  # noqa: E402

pytestmark = pytest.mark.ray

LAG_S = 180.0


def answer_of(body: Mapping[str, Any]) -> str:
    """What the engines say to a request: words of its newest question, so that a mixed-up answer shows."""
    return f"answer to {body['messages'][-1]['content'].rpartition('Q:')[2]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def two_engines() -> Iterator[list[SimulatedEngine]]:
    with SimulatedEngine(reply=answer_of) as one, SimulatedEngine(reply=answer_of) as other:
        yield [one, other]


@pytest.fixture(scope="module")
def third_engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine(reply=answer_of) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(running_ray: None, two_engines: list[SimulatedEngine]) -> Iterator[str]:
    """Two proxy replicas and one door."""
    port = free_port()
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        args = {"engines": [engine.base_url for engine in two_engines], "scale": {"replicas": 2, "cpus": 0.1}}
        serve.run(app.build(args), route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()


@pytest.fixture(scope="module")
def shared_url(url: str, third_engine: SimulatedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another application beside it: one proxy replica, before an engine of its own, with conversations in Redis."""
    redis = RedisServer(tmp_path_factory.mktemp("redis")).start()
    try:
        store = {"redis_url": redis.url}
        args = {"engine": third_engine.base_url, "scale": {"replicas": 1, "cpus": 0.1}, "store": store}
        serve.run(app.build(args), name="shared", route_prefix="/shared")
        yield f"{url}/shared"
    finally:
        redis.kill()


def body_of(question: str, *blocks: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"Q:{question}"}], "context_blocks": list(blocks), **more}


def post(url: str, body: Mapping[str, Any], **headers: str) -> Any:
    """The answer as JSON, and the plan that its header tells."""
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=LAG_S) as answer:
        return json.load(answer), json.loads(answer.headers["x-prefixpilot-plan"])


def said(answer: Mapping[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def texts(name: str, count: int) -> list[str]:
    return [f"{name} document {n}: " + f"words of {name} {n} " * 20 for n in range(count)]


def test_a_stream_passes_piece_by_piece_and_a_client_that_leaves_ends_it(
    url: str, two_engines: list[SimulatedEngine]
) -> None:
    """The engines stall behind two pieces: that those arrive shows that nothing waits for the end of the answer."""
    for engine in two_engines:
        engine.fault = Stall(after_chunks=2)
    try:
        host, _, port = url.removeprefix("http://").partition(":")
        connection = HTTPConnection(host, int(port), timeout=LAG_S)
        body = json.dumps(body_of("stream", "a text", stream=True))
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        seen = b""
        while seen.count(b'"content"') < 2:
            piece = answer.read1(4096)
            assert piece
            seen += piece
        assert b"[DONE]" not in seen
        before = sum(len(engine.disconnected) for engine in two_engines)
        connection.close()
        answer.close()
        wait_until(lambda: sum(len(engine.disconnected) for engine in two_engines) > before)
    finally:
        for engine in two_engines:
            engine.fault = None


def wait_until(true: Any) -> None:
    end = time.monotonic() + LAG_S
    while not true():
        assert time.monotonic() < end, "not within the bound"
        time.sleep(0.02)


def test_turns_of_a_conversation_meet_the_replica_that_has_its_past(
    url: str, two_engines: list[SimulatedEngine]
) -> None:
    for chat in range(6):
        blocks = texts(f"chat{chat}", 3)
        first, _ = post(url, body_of(f"one {chat}", *blocks), x_prefixpilot_conversation=f"chat-{chat}")
        history = [
            {"role": "user", "content": f"Q:one {chat}"},
            {"role": "assistant", "content": said(first)},
            {"role": "user", "content": f"Q:two {chat}"},
        ]
        body = {"messages": history, "context_blocks": [blocks[1]]}
        second, _ = post(url, body, x_prefixpilot_conversation=f"chat-{chat}")
        assert said(second) == f"answer to two {chat}"
        prompt = json.dumps(newest(two_engines, f"two {chat}"))
        assert prompt.count(f"chat{chat} document 1:") == 1  # in the first turn, which the client did not send again
        assert prompt.count(f"chat{chat} document 0:") == 1


def newest(engines: list[SimulatedEngine], question: str) -> Any:
    found = [chat.json() for engine in engines for chat in engine.chats if f"Q:{question}" in chat.body.decode()]
    return found[-1]["messages"]


def test_requests_that_share_documents_meet_the_replica_that_has_seen_them(url: str) -> None:
    for group in range(4):
        blocks = texts(f"group{group}", 4)
        post(url, body_of("first", *blocks))
        _, plan = post(url, body_of("second", *reversed(blocks)))
        assert plan["predicted_cached_tokens"] > 0


def test_what_is_no_chat_goes_through(url: str) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=LAG_S) as answer:
        assert json.load(answer)["data"][0]["id"] == "simulated"


def replicas_of(deployment: str, application: str = "default") -> list[str]:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return sorted(name for name in names if name.startswith(f"SERVE_REPLICA::{application}#{deployment}#"))


def kill_all(application: str) -> None:
    """Every proxy replica, at once."""
    for name in replicas_of("pilots", application):
        ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)


def turns_around_a_death(url: str, application: str, blocks: list[str]) -> None:
    """Two turns of a conversation; in between all replicas die. The second carries one of the first one's documents."""
    first, _ = post(url, body_of(f"{application} one", *blocks), x_prefixpilot_conversation="c")
    kill_all(application)
    history = [
        {"role": "user", "content": f"Q:{application} one"},
        {"role": "assistant", "content": said(first)},
        {"role": "user", "content": f"Q:{application} two"},
    ]
    second, _ = post(url, {"messages": history, "context_blocks": [blocks[1]]}, x_prefixpilot_conversation="c")
    assert said(second) == f"answer to {application} two"


def refers(message: Mapping[str, Any]) -> bool:
    """Whether something but its own first document is named by a label."""
    return "[Doc" in message["content"].rpartition("Q:")[0].replace("[Doc 1]", "", 1)


def test_in_redis_all_of_a_conversation_outlives_all_replicas(shared_url: str, third_engine: SimulatedEngine) -> None:
    blocks = texts("kept", 3)
    turns_around_a_death(shared_url, "shared", blocks)
    sent = newest([third_engine], "shared two")
    assert [text in sent[0]["content"] for text in blocks] == [True] * 3
    assert blocks[1] not in sent[-1]["content"] and refers(sent[-1])


def test_without_a_store_what_the_request_carries_is_left_and_nothing_refers_to_what_is_gone(
    url: str, two_engines: list[SimulatedEngine]
) -> None:
    blocks = texts("lost", 3)
    turns_around_a_death(url, "default", blocks)
    sent = newest(two_engines, "default two")
    assert [text in sent[0]["content"] for text in blocks] == [False] * 3
    assert blocks[1] in sent[-1]["content"] and not refers(sent[-1])


def test_a_killed_replica_loses_no_answer_and_no_document(url: str, two_engines: list[SimulatedEngine]) -> None:
    """Under load; only answers that had begun may break off, and these do not stream."""
    wait_until(lambda: len(replicas_of("pilots")) == 2)
    before = replicas_of("pilots")
    killed = threading.Event()

    def ask(number: int) -> str:
        if number == 30:
            ray.kill(ray.get_actor(before[0], namespace="serve"), no_restart=True)
            killed.set()
        try:
            answer, _ = post(url, body_of(f"load {number:03}", *texts(f"load{number % 7}", 3)))
        except (urllib.error.URLError, HTTPException, ConnectionError) as error:
            return f"error {error}"
        return said(answer)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(90)))
    assert killed.is_set()
    wrong = [
        (number, answer)
        for number, answer in enumerate(answers)
        if answer != f"answer to load {number:03}" and not answer.startswith("error")
    ]
    assert not wrong
    assert not [answer for answer in answers if answer.startswith("error")]
    for number in range(90):
        prompt = json.dumps(newest(two_engines, f"load {number:03}"))
        for text in texts(f"load{number % 7}", 3):
            assert text in prompt
    wait_until(lambda: len(set(replicas_of("pilots")) - {before[0]}) == 2)


def test_an_engine_on_a_path_of_its_own(url: str) -> None:
    args = {"kind": "simulated", "cpus": 0.1, "cache_tokens": 10_000}
    serve.run(engines.build(args), name="engine", route_prefix="/engines/0")
    with serve_in_thread(ProxySettings(f"{url}/engines/0", port=0)) as proxy:
        answer, plan = post(proxy.url, body_of("second", "text one", "text two"))
    assert said(answer) == "This is a simulated answer."
    assert plan["blocks"] == 2


def test_an_engine_that_cannot_be_reached_is_named(shared_url: str, third_engine: SimulatedEngine) -> None:
    """The last test that needs this engine."""
    third_engine.stop()
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(shared_url, body_of("q", "text"))
    assert caught.value.code == 502
    assert third_engine.base_url.removeprefix("http://") in caught.value.read().decode()


def test_an_unknown_policy_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match="context-aware"):
        app.build({"engine": "http://127.0.0.1:1", "scale": {"policy": "best"}})
