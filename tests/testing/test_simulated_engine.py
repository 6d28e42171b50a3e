"""The simulated engine over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.errors import EngineError
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.testing import BreakOff, CloseConnection, ErrorEvent, Fault, Garbage, Respond, SimulatedEngine

BOUND_S = 20.0


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


@contextlib.contextmanager
def connect(engine: SimulatedEngine) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(engine.base_url).netloc, timeout=BOUND_S)
    try:
        yield connection
    finally:
        connection.close()


def send(engine: SimulatedEngine, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    with connect(engine) as connection:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def chat_body(text: str = "Where does the conveyor end?", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def chat(engine: SimulatedEngine, text: str = "Where does the conveyor end?", **more: Any) -> tuple[int, bytes]:
    return send(engine, "POST", "/v1/chat/completions", chat_body(text, **more))


def counts(engine: SimulatedEngine, text: str) -> tuple[int, int]:
    """(prompt tokens, cached tokens)"""
    usage = json.loads(chat(engine, text)[1])["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.decode().split("\n") if line.startswith("data: {")]


def streamed_text(stream: bytes) -> str:
    return "".join(c["delta"].get("content", "") for e in events(stream) if "choices" in e for c in e["choices"])


def test_a_plain_answer(engine: SimulatedEngine) -> None:
    engine.reply = lambda body: f"You said {body['messages'][-1]['content']}"
    status, answer = chat(engine, "hello")
    parsed = json.loads(answer)
    assert status == 200 and parsed["object"] == "chat.completion" and parsed["model"] == "m"
    assert parsed["choices"][0]["message"] == {"role": "assistant", "content": "You said hello"}
    assert parsed["choices"][0]["finish_reason"] == "stop"


def test_the_cache_decides_what_usage_reports(engine: SimulatedEngine) -> None:
    documents = [f"document {i} " + f"w{i} " * 20 for i in range(6)]
    total, cached = counts(engine, "\n".join(documents))
    assert total > 100 and cached == 0
    assert counts(engine, "\n".join(documents)) == (total, total - 1)
    assert counts(engine, "\n".join(documents[::-1]))[1] < 10
    assert counts(engine, "\n".join([*documents[:3], "something else"]))[1] > total / 3


def test_a_small_cache_evicts() -> None:
    with SimulatedEngine(cache=RadixPrefixCache(60)) as engine:
        first, second = "first " * 50, "second " * 50
        counts(engine, first)
        counts(engine, second)
        assert counts(engine, first)[1] < 10


def test_a_stream_with_and_without_usage(engine: SimulatedEngine) -> None:
    _, without = chat(engine, stream=True)
    _, with_usage = chat(engine, stream=True, stream_options={"include_usage": True})
    assert streamed_text(without) == streamed_text(with_usage) == "This is a simulated answer."
    assert not any("usage" in e for e in events(without))
    last = events(with_usage)[-1]
    assert last["choices"] == [] and last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert without.endswith(b"data: [DONE]\n\n")


def test_max_tokens_cuts_the_answer(engine: SimulatedEngine) -> None:
    choice = json.loads(chat(engine, max_tokens=2)[1])["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == "This is"


def test_requests_are_recorded_as_received(engine: SimulatedEngine) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(engine.base_url).port or 0), timeout=BOUND_S) as raw:
        raw.sendall(
            b"PUT /a%20b//c/../d?x=1&&y=%2F+ HTTP/1.1\r\nHost: h\r\nX-Twice: 1\r\nx-twice:  2\r\n"
            b"Content-Length: 4\r\nX-Forwarded-For: 9.9.9.9\r\nConnection: close\r\n\r\n\x00\xff\r\n"
        )
        while raw.recv(4096):
            pass
    (request,) = engine.requests
    assert (request.number, request.method, request.path) == (0, "PUT", "/a%20b//c/../d")
    assert (request.query, request.body) == (b"x=1&&y=%2F+", b"\x00\xff\r\n")
    assert [value for name, value in request.headers if name == "x-twice"] == ["1", "2"]
    assert request.header("X-Forwarded-For") == "9.9.9.9" and request.header("absent") is None


def test_other_paths_are_echoed(engine: SimulatedEngine) -> None:
    status, answer = send(engine, "PATCH", "/v1/anything?q=1", b"body", **{"X-Mark": "yes"})
    echo = json.loads(answer)
    assert status == 200 and ["x-mark", "yes"] in echo["headers"]
    assert {k: v for k, v in echo.items() if k != "headers"} == {
        "method": "PATCH",
        "path": "/v1/anything",
        "query": "q=1",
        "body": "body",
    }


def test_models_and_health(engine: SimulatedEngine) -> None:
    assert json.loads(send(engine, "GET", "/v1/models")[1])["data"][0]["id"] == "simulated"
    assert send(engine, "GET", "/health")[0] == 200


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}", b'{"messages": []}'])
def test_a_bad_chat_body_gets_an_error_in_the_apis_shape(engine: SimulatedEngine, body: bytes) -> None:
    status, answer = send(engine, "POST", "/v1/chat/completions", body)
    assert status == 400 and set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


def test_a_settable_answer(engine: SimulatedEngine) -> None:
    engine.fault = Respond(418, b"<p>tea</p>", "text/html", (("X-Pot", "brown"),))
    with connect(engine) as connection:
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert (response.status, response.read()) == (418, b"<p>tea</p>")
        assert (response.getheader("content-type"), response.getheader("x-pot")) == ("text/html", "brown")
    engine.fault = None
    assert chat(engine)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (BreakOff(), http.client.IncompleteRead),
        (CloseConnection(), http.client.RemoteDisconnected),
        (Garbage(), http.client.BadStatusLine),
    ],
)
def test_broken_connections(engine: SimulatedEngine, fault: Fault, error: type[Exception], stream: bool) -> None:
    engine.fault = fault
    with pytest.raises(error):
        chat(engine, stream=stream)
    assert engine.disconnected == ()
    engine.fault = None
    assert chat(engine, stream=stream)[0] == 200


def test_a_stream_breaks_off_after_as_many_chunks_as_told(engine: SimulatedEngine) -> None:
    engine.fault = BreakOff(after_chunks=2)
    with pytest.raises(http.client.IncompleteRead) as caught:
        chat(engine, stream=True)
    assert streamed_text(caught.value.partial) == "This is"


def test_an_error_event(engine: SimulatedEngine) -> None:
    engine.fault = ErrorEvent(1, {"message": "out of memory"})
    status, stream = chat(engine, stream=True)
    assert status == 200 and streamed_text(stream) == "This" and b"[DONE]" not in stream
    assert events(stream)[-1] == {"error": {"message": "out of memory"}}
    status, answer = chat(engine)
    assert (status, json.loads(answer)) == (500, {"error": {"message": "out of memory"}})


def test_a_client_that_leaves_mid_stream_is_noticed(engine: SimulatedEngine) -> None:
    engine.chunk_delay_s = 0.05
    engine.reply = lambda body: "word " * 10_000
    with connect(engine) as connection:
        connection.request("POST", "/v1/chat/completions", chat_body(stream=True))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
    assert engine.wait_for_disconnect(1, BOUND_S)
    assert engine.disconnected == (0,)


def test_a_client_that_leaves_before_the_first_byte_is_noticed(engine: SimulatedEngine) -> None:
    engine.delay_s = 600
    with connect(engine) as connection:
        connection.request("GET", "/health")
        assert engine.wait_for_requests(1, BOUND_S)
    assert engine.wait_for_disconnect(1, BOUND_S)


def test_complete_answers_are_no_disconnects(engine: SimulatedEngine) -> None:
    for stream in (False, True):
        chat(engine, stream=stream)
    assert not engine.wait_for_disconnect(1, timeout_s=0.1)


def test_a_connection_may_end_unannounced_after_an_answer(engine: SimulatedEngine) -> None:
    for hang_up in (False, True):
        engine.hang_up_after_answer = hang_up
        with connect(engine) as connection:
            connection.request("POST", "/v1/chat/completions", chat_body(stream=True))
            response = connection.getresponse()
            assert response.read().endswith(b"[DONE]\n\n") and response.getheader("connection") is None
            with pytest.raises(ConnectionError) if hang_up else contextlib.nullcontext():
                connection.request("GET", "/health")
                assert connection.getresponse().read()
    assert engine.disconnected == ()


def test_prefill_takes_its_time_and_a_hit_does_not() -> None:
    with SimulatedEngine(prefill_tokens_per_s=200) as engine:
        start = time.monotonic()
        total, _ = counts(engine, "word " * 100)
        cold = time.monotonic() - start
    assert cold >= total / 200  # a lower bound: it may never be quicker


def test_stop_has_a_bound_also_while_a_request_hangs() -> None:
    engine = SimulatedEngine(delay_s=600).start()
    url = urlsplit(engine.base_url)
    with connect(engine) as connection:
        connection.request("GET", "/health")
        assert engine.wait_for_requests(1, BOUND_S)
        engine.stop()
    engine.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname or "", url.port or 0), timeout=1)


def test_no_address_before_start() -> None:
    with pytest.raises(EngineError, match=r"call start\(\)"):
        _ = SimulatedEngine().base_url


def test_two_engines_at_once(engine: SimulatedEngine) -> None:
    with SimulatedEngine(model="second") as other:
        assert other.base_url != engine.base_url
        assert json.loads(send(other, "GET", "/v1/models")[1])["data"][0]["id"] == "second"
