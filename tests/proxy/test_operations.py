"""The proxy in operation: own paths and their door, tenants and salts, limits, log lines, metrics, stats."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.logs import PACKAGE, BackgroundHandler, configure_logs
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.settings import AdminSettings, LogSettings, TenantSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond

from .support import Answer, assistant, chat, fetch, metric, post_chat, user

TOKEN = "an admin token of some length"
SALT = Secret("a secret for salts, long enough")
BLOCKS = [f"Document {n} says that the pool number {n} opens at {n} every day of the week." for n in range(1, 6)]


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def proxied(engine: SimulatedEngine, **settings: Any) -> Iterator[str]:
    with serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, **settings)) as running:
        yield running.url


@contextlib.contextmanager
def logged(settings: LogSettings) -> Iterator[io.StringIO]:
    """What the package logs meanwhile. All of it is there when a proxy that was started within has ended."""
    logger, stream = logging.getLogger(PACKAGE), io.StringIO()
    before = logger.handlers[:], logger.level, logger.propagate
    configure_logs(settings, logging.StreamHandler(stream))
    try:
        yield stream
    finally:
        logger.handlers[:], logger.level, logger.propagate = before


def lines_of(stream: io.StringIO, count: int = 1) -> list[dict[str, Any]]:
    """The access lines so far, once there are as many."""
    deadline = time.monotonic() + 10
    while True:
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        access = [line for line in lines if line["logger"] == "prefixpilot.access"]
        if len(access) >= count or time.monotonic() > deadline:
            return access
        time.sleep(0.01)


class TestDoor:
    GUARDED = (
        ("GET", "/metrics"),
        ("GET", "/stats"),
        ("GET", "/plans/r1"),
        ("POST", "/evict"),
        ("POST", "/reset"),
    )

    @pytest.fixture
    def guarded(self, engine: SimulatedEngine) -> Iterator[str]:
        with proxied(engine, admin=AdminSettings(Secret(TOKEN))) as url:
            yield url

    @pytest.mark.parametrize(("method", "path"), GUARDED)
    def test_what_all_share_asks_for_the_token(self, guarded: str, method: str, path: str) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            refused = fetch(guarded, method, path, {"request_ids": []}, headers)
            assert refused.status == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.header("WWW-Authenticate") == "Bearer"
            assert TOKEN.encode() not in refused.body
        let_in = fetch(guarded, method, path, {"request_ids": []}, {"Authorization": f"Bearer {TOKEN}"})
        assert let_in.status == (404 if "plans" in path else 200)

    def test_health_readiness_and_the_description_are_open(self, guarded: str) -> None:
        assert [fetch(guarded, "GET", path).status for path in ("/healthz", "/readyz", "/openapi.json")] == [200] * 3

    def test_the_engines_paths_do_not_ask_for_it(self, guarded: str) -> None:
        assert post_chat(guarded, chat([user("Q?")], ["A"])).status == 200
        assert fetch(guarded, "GET", "/v1/models").status == 200


class TestReset:
    def test_it_forgets_index_conversations_and_plans(self, proxy: RunningProxy) -> None:
        body = chat([user("Q?")], BLOCKS)
        post_chat(proxy.url, body, X_PrefixPilot_Conversation="c", X_Request_Id="r1")
        assert fetch(proxy.url, "GET", "/stats").json()["sizes"]["live_requests"] == 1
        assert fetch(proxy.url, "POST", "/reset").json() == {"requests": 1, "conversations": 1, "plans": 1, "forms": 0}
        sizes = fetch(proxy.url, "GET", "/stats").json()["sizes"]
        assert (sizes["live_requests"], sizes["conversations"], sizes["plans"]) == (0, 0, 0)
        assert fetch(proxy.url, "GET", "/plans/r1").status == 404
        again = post_chat(proxy.url, chat([user("Q?")], BLOCKS[::-1]), X_Request_Id="r2")
        assert json.loads(again.header("X-PrefixPilot-Plan") or "")["prefix_len"] == 0

    def test_it_forgets_what_is_on_disk(self, engine: SimulatedEngine, tmp_path: Path) -> None:
        store = StoreSettings(state_dir=str(tmp_path))
        body = chat([user("Q?")], BLOCKS)
        turns = [user("Q?"), {"role": "assistant", "content": "This is a simulated answer."}, user("And?")]

        def restored(url: str) -> int:
            answer = post_chat(url, chat(turns, ["New."]), X_PrefixPilot_Conversation="c")
            return int(json.loads(answer.header("X-PrefixPilot-Plan") or "")["restored"])

        with proxied(engine, store=store) as url:
            post_chat(url, body, X_PrefixPilot_Conversation="c")
        with proxied(engine, store=store) as url:
            assert restored(url) == 1, "it survives the process"
            assert fetch(url, "POST", "/reset").status == 200
            assert restored(url) == 0
        with proxied(engine, store=store) as url:
            assert fetch(url, "POST", "/reset").status == 200
        with proxied(engine, store=store) as url:
            assert restored(url) == 0


class TestDelete:
    def test_a_conversation_goes_with_its_tenant_and_its_credentials_only(self, engine: SimulatedEngine) -> None:
        keys = {hashed("key-a"): "a", hashed("key-b"): "b"}
        a, b = {"Authorization": "Bearer key-a"}, {"Authorization": "Bearer key-b"}
        with proxied(engine, tenants=TenantSettings(keys=keys, required=True)) as url:
            post_chat(url, chat([user("Q?")], ["A"]), X_PrefixPilot_Conversation="c d", **a)
            assert fetch(url, "DELETE", "/conversations/c%20d", headers=b).status == 404
            assert fetch(url, "DELETE", "/conversations/c%20d").status == 401
            assert fetch(url, "DELETE", "/conversations/c%20d", headers=a).status == 204
            assert fetch(url, "DELETE", "/conversations/c%20d", headers=a).status == 404

    def test_a_first_turn_under_way_is_forgotten_too(self, engine: SimulatedEngine) -> None:
        who = {"X_PrefixPilot_Conversation": "c", "Authorization": "Bearer me"}
        engine.delay_s = 1.0
        with proxied(engine) as url, ThreadPoolExecutor(1) as beside:
            asked = beside.submit(post_chat, url, chat([user("Q?")], ["A"]), **who)
            end = time.monotonic() + 10
            while fetch(url, "DELETE", "/conversations/c", headers={"Authorization": "Bearer me"}).status != 204:
                assert not asked.done() and time.monotonic() < end
            assert asked.result().status == 200
            engine.delay_s = 0.0
            answer = post_chat(url, chat([user("Q?"), assistant(), user("And?")], ["B"]), **who)
            assert json.loads(answer.header("X-PrefixPilot-Plan") or "")["restored"] == 0


def wait_for_nothing_under_way(url: str) -> None:
    """A client may have its answer a moment before the proxy has counted the request out."""
    end = time.monotonic() + 10
    while metric(fetch(url, "GET", "/metrics").body.decode(), "prefixpilot_in_flight") != 0:
        assert time.monotonic() < end
        time.sleep(0.02)


class TestTenants:
    def test_keys_keep_tenants_apart_in_the_index_and_in_conversations(self, engine: SimulatedEngine) -> None:
        keys = {hashed("key-a"): "a", hashed("key-b"): "b", hashed("key-a2"): "a"}
        with proxied(engine, tenants=TenantSettings(keys=keys)) as url:

            def prefix_len(key: str) -> int:
                answer = post_chat(url, chat([user("Q?")], BLOCKS), Authorization=f"Bearer {key}")
                return int(json.loads(answer.header("X-PrefixPilot-Plan") or "")["prefix_len"])

            assert [prefix_len(key) for key in ("key-a", "key-b", "key-a2", "key-b")] == [0, 0, 5, 5]

    def test_a_tenant_is_required_of_the_engines_paths_only(self, engine: SimulatedEngine) -> None:
        with proxied(engine, tenants=TenantSettings(keys={hashed("k"): "a"}, required=True)) as url:
            for answer in (post_chat(url, chat([user("Q?")], ["A"])), fetch(url, "GET", "/v1/models")):
                assert (answer.status, answer.json()["error"]["type"]) == (401, "authentication_error")
            assert fetch(url, "GET", "/healthz").status == 200
            assert fetch(url, "GET", "/v1/models", headers={"X-Api-Key": "k"}).status == 200
        assert len(engine.requests) == 1

    def test_the_header_is_believed_from_trusted_peers_only(self, engine: SimulatedEngine) -> None:
        with proxied(engine, tenants=TenantSettings(header="X-Tenant", trusted_peers=("10.0.0.0/8",))) as url:
            assert post_chat(url, chat([user("Q?")], ["A"]), X_Tenant="a").status == 403
            assert post_chat(url, chat([user("Q?")], ["A"])).status == 200

    def test_one_tenant_cannot_take_all_places(self, engine: SimulatedEngine) -> None:
        engine.delay_s = 1.0
        settings = TenantSettings(header="X-Tenant", max_in_flight=1)
        with proxied(engine, tenants=settings) as url:
            first = threading.Thread(target=post_chat, args=(url, chat([user("Q?")])), kwargs={"X_Tenant": "a"})
            first.start()
            assert engine.wait_for_requests(1)
            refused = post_chat(url, chat([user("Q?")]), X_Tenant="a")
            assert (refused.status, refused.header("Retry-After")) == (429, "1")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert post_chat(url, chat([user("Q?")]), X_Tenant="b").status == 200
            first.join(10)
            engine.delay_s = 0.0
            wait_for_nothing_under_way(url)
            assert post_chat(url, chat([user("Q?")]), X_Tenant="a").status == 200


class TestSalt:
    """Paired: with the salt the engine reuses nothing between tenants, without it all of it; inside one it does."""

    BODY = chat([user("Question? " + "The same words for all. " * 40)])

    def cached(self, url: str, tenant: str, body: dict[str, Any]) -> int:
        answer = post_chat(url, body, X_Tenant=tenant)
        assert answer.status == 200, answer.body
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    @pytest.mark.parametrize("blocks", [None, BLOCKS])
    def test_no_reuse_between_tenants_and_reuse_inside_one(
        self, engine: SimulatedEngine, blocks: list[str] | None
    ) -> None:
        body = self.BODY if blocks is None else {**self.BODY, "context_blocks": blocks}
        plain = TenantSettings(header="X-Tenant")
        with proxied(engine, tenants=plain) as url:
            assert self.cached(url, "a", body) == 0
            assert self.cached(url, "b", body) > 100
        with proxied(engine, tenants=TenantSettings(header="X-Tenant", cache_salt_secret=SALT)) as url:
            first, other, again = (self.cached(url, tenant, body) for tenant in ("a", "b", "a"))
        assert (first, other) == (0, 0)
        assert again > 100

    def test_a_client_cannot_choose_the_salt_of_another(self, engine: SimulatedEngine) -> None:
        with proxied(engine, tenants=TenantSettings(header="X-Tenant", cache_salt_secret=SALT)) as url:
            self.cached(url, "a", self.BODY)
            stolen = engine.requests[-1].json()["cache_salt"]
            assert self.cached(url, "b", {**self.BODY, "cache_salt": stolen}) == 0
            assert self.cached(url, "a", {**self.BODY, "cache_salt": "own"}) == 0
            assert self.cached(url, "a", {**self.BODY, "cache_salt": "own"}) > 100

    def test_nothing_else_of_the_body_changes(self, engine: SimulatedEngine) -> None:
        raw = b'{ "model":"m", "n" : 1.50,"messages": [{"role":"user","content":"\\u00e9"}] }'
        with proxied(engine, tenants=TenantSettings(header="X-Tenant", cache_salt_secret=SALT)) as url:
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
                fetch(url, "POST", path, raw, {"X-Tenant": "a", "Content-Type": "application/json"})
                got = engine.requests[-1]
                assert got.path == path
                added = f', "cache_salt": "{got.json()["cache_salt"]}"'.encode()
                assert got.body.count(added) == 1
                assert got.body.replace(added, b"") == raw
                assert got.header("Content-Length") == str(len(got.body))

    @pytest.mark.parametrize("raw", [b'{"cache_salt": "a", "cache_salt": "b", "messages": []}', b'{"messages": [NaN]}'])
    def test_what_would_go_out_unsalted_is_refused(self, engine: SimulatedEngine, raw: bytes) -> None:
        with proxied(engine, tenants=TenantSettings(header="X-Tenant", cache_salt_secret=SALT)) as url:
            refused = fetch(url, "POST", "/v1/chat/completions", raw)
            assert (refused.status, refused.json()["error"]["param"]) == (400, "cache_salt")
        assert engine.requests == ()

    def test_a_body_too_long_to_salt_is_refused(self, engine: SimulatedEngine) -> None:
        settings = TenantSettings(header="X-Tenant", cache_salt_secret=SALT)
        with proxied(engine, tenants=settings, max_body_bytes=1000) as url:
            assert post_chat(url, chat([user("x" * 2000)])).status == 413
        assert engine.requests == ()


class TestLimits:
    def test_a_head_that_is_too_long_gets_a_431(self, engine: SimulatedEngine) -> None:
        with proxied(engine, max_header_bytes=8192) as url:
            assert fetch(url, "GET", "/v1/models", headers={"X-Long": "x" * 6000}).status == 200
            refused = raw_exchange(url, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n")
        assert refused.status == 431
        assert refused.json()["error"]["code"] == "headers_too_large"

    def test_what_is_no_http_gets_a_400_in_the_apis_shape(self, engine: SimulatedEngine) -> None:
        with proxied(engine) as url:
            refused = raw_exchange(url, b"what is this\r\n\r\n")
        assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_http")

    def test_a_head_that_does_not_end_is_given_up(self, engine: SimulatedEngine) -> None:
        with proxied(engine, receive_timeout=0.3) as url:
            refused = raw_exchange(url, b"GET / HTTP/1.1\r\nHost: x\r\n")
            assert (refused.status, refused.json()["error"]["code"]) == (408, "request_timeout")
            with open_socket(url) as silent:
                assert silent.recv(100) == b""

    @pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/anything"])
    def test_a_body_that_does_not_end_is_given_up(self, engine: SimulatedEngine, path: bytes) -> None:
        with proxied(engine, receive_timeout=0.3) as url:
            refused = raw_exchange(url, b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert (refused.status, refused.json()["error"]["code"]) == (408, "request_timeout")
            assert refused.header("Connection") == "close"
            assert fetch(url, "GET", "/v1/models").status == 200

    def test_a_kept_connection_outlives_the_bound_of_a_head(self, engine: SimulatedEngine) -> None:
        with proxied(engine, receive_timeout=0.3) as url:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
            with contextlib.closing(connection):
                for _ in range(2):
                    connection.request("GET", "/healthz")
                    assert connection.getresponse().read() == b'{"status": "ok"}'
                    time.sleep(0.6)

    def test_past_the_bound_on_requests_under_way_a_503_says_when_to_come_again(self, engine: SimulatedEngine) -> None:
        engine.delay_s = 1.0
        with proxied(engine, max_in_flight=1) as url:
            first = threading.Thread(target=post_chat, args=(url, chat([user("Q?")], ["A"])))
            first.start()
            assert engine.wait_for_requests(1)
            refused = post_chat(url, chat([user("Q?")], ["A"]))
            assert (refused.status, refused.header("Retry-After")) == (503, "1")
            assert refused.json()["error"]["code"] == "overloaded"
            assert fetch(url, "GET", "/healthz").status == 200
            assert metric(fetch(url, "GET", "/metrics").body.decode(), "prefixpilot_in_flight") == 1
            first.join(10)
            engine.delay_s = 0.0
            wait_for_nothing_under_way(url)
            assert post_chat(url, chat([user("Q?")], ["A"])).status == 200
            wait_for_nothing_under_way(url)


class TestLog:
    SECRET = "sk-a-secret-key"
    PROMPT = "the patient's name"

    def test_each_request_has_one_line_with_its_figures(self, engine: SimulatedEngine) -> None:
        with logged(LogSettings("json")) as stream, proxied(engine) as url:
            post_chat(url, chat([user("Q?")], BLOCKS), X_Request_Id="r1")
            post_chat(url, chat([user("Q?")], BLOCKS, stream=True), X_Request_Id="r2")
            fetch(url, "GET", "/v1/models?api_key=" + self.SECRET, headers={"X-Request-Id": "r3"})
            fetch(url, "GET", "/healthz", headers={"X-Request-Id": "r4"})
            lines = {line["request_id"]: line for line in lines_of(stream, 4)}
        first, streamed, passed, own = (lines[f"r{n}"] for n in range(1, 5))
        assert (first["api"], first["outcome"], first["status"], first["treated"]) == ("chat", "planned", 200, True)
        assert first["prompt_tokens"] > 0 and first["cached_tokens"] == 0
        assert 0 < first["ttft_ms"] <= first["ms"]
        assert streamed["cached_tokens"] is None, "a stream that was not asked for its usage: unknown, not zero"
        assert (passed["api"], passed["path"], passed["prompt_tokens"]) == ("other", "/v1/models", None)
        assert (own["api"], own["outcome"]) == ("own", None)

    def test_plan_engine_and_log_have_one_id(self, engine: SimulatedEngine) -> None:
        with logged(LogSettings("json")) as stream, proxied(engine) as url:
            answer = post_chat(url, chat([user("When?")], BLOCKS))
            (line,) = lines_of(stream)
        plan = json.loads(answer.header("X-PrefixPilot-Plan") or "")
        sent = {name.lower(): value for name, value in engine.requests[-1].headers}
        assert plan["request_id"] == line["request_id"] == sent["x-request-id"]

    @pytest.mark.parametrize("form", ["json", "text"])
    def test_neither_keys_nor_prompts_are_in_it(self, engine: SimulatedEngine, form: Any) -> None:
        with logged(LogSettings(form, "debug")) as stream, proxied(engine) as url:
            headers = {"Authorization": f"Bearer {self.SECRET}", "X-Api-Key": self.SECRET, "Cookie": self.SECRET}
            target = f"/v1/chat/completions?key={self.SECRET}"
            bodies: list[Any] = [
                chat([user(self.PROMPT)], [self.PROMPT]),
                chat([user(self.PROMPT)], [{"text": self.PROMPT, "id": 1}]),
                f'{{"context_blocks": ["{self.PROMPT}"'.encode(),
            ]
            for fault in (None, Respond(500, b"<html>" + self.PROMPT.encode(), "text/html")):
                engine.fault = fault
                for body in bodies:
                    fetch(url, "POST", target, body, headers)
        text = stream.getvalue()
        assert text.count("/v1/chat/completions") == 6
        assert self.SECRET not in text
        assert self.PROMPT not in text

    def test_an_error_of_ours_shows_its_place_and_its_words_only_if_asked(self, engine: SimulatedEngine) -> None:
        for details in (False, True):
            app_settings = ProxySettings(engine.base_url, port=0)
            with logged(LogSettings("json", details=details)) as stream, serve_in_thread(app_settings) as proxy:
                proxy.app.pipeline.attempt("plan", self.fail)
                line = json.loads(stream.getvalue().splitlines()[0])
            assert "KeyError" in line["error"] and "test_operations.py" in line["error"]
            assert (self.PROMPT in line["error"]) == details

    def fail(self) -> None:
        raise KeyError(self.PROMPT)

    def test_a_record_is_one_line_whatever_the_client_sends(self, engine: SimulatedEngine) -> None:
        with logged(LogSettings("text")) as stream, proxied(engine) as url:
            fetch(url, "GET", "/v1/models", headers={"X-Request-Id": "a\tb\x85c"})
        assert len(stream.getvalue().splitlines()) == 1

    def test_access_lines_can_be_left_out(self, engine: SimulatedEngine) -> None:
        with logged(LogSettings("json", access=False)) as stream, proxied(engine) as url:
            fetch(url, "GET", "/v1/models")
            logging.getLogger(PACKAGE).warning("still there")
        assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["still there"]


class Stuck(io.StringIO):
    """A stream whose reader does not read until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.let_go.wait(10)
        return super().write(text)


def test_a_reader_of_the_log_who_stops_holds_nothing_up(engine: SimulatedEngine) -> None:
    stream = Stuck()
    handler = BackgroundHandler(stream, max_lines=2)
    with logged(LogSettings("json")), proxied(engine) as url:
        configure_logs(LogSettings("json"), handler)
        for _ in range(6):
            assert fetch(url, "GET", "/v1/models").status == 200
    stream.let_go.set()
    handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines].count("request") == 3
    assert any(line["message"].startswith("3 lines were left out") for line in lines)


class TestStats:
    def stats(self, url: str) -> dict[str, Any]:
        document: dict[str, Any] = fetch(url, "GET", "/stats").json()
        return document

    def test_unknown_is_not_zero(self, proxy: RunningProxy) -> None:
        cache = self.stats(proxy.url)["cache"]
        assert (cache["answers_known"], cache["answers_unknown"]) == (0, 0)
        assert (cache["cached_tokens"], cache["hit_rate"]) == (None, None)
        post_chat(proxy.url, chat([user("Q?")], BLOCKS, stream=True))
        cache = self.stats(proxy.url)["cache"]
        assert (cache["answers_known"], cache["answers_unknown"], cache["hit_rate"]) == (0, 1, None)

    def test_measured_and_predicted_are_told_apart(self, proxy: RunningProxy) -> None:
        for _ in range(2):
            answer = post_chat(proxy.url, chat([user("Q?")], BLOCKS))
        used = answer.json()["usage"]
        cache = self.stats(proxy.url)["cache"]
        assert (cache["answers_known"], cache["answers_unknown"]) == (2, 0)
        assert cache["cached_tokens"] == used["prompt_tokens_details"]["cached_tokens"]
        assert cache["hit_rate"] == round(cache["cached_tokens"] / cache["prompt_tokens"], 4)
        assert 0 < cache["predicted_cached_tokens"] != cache["cached_tokens"]
        post_chat(proxy.url, chat([user("Q?")], BLOCKS, stream=True))
        cache = self.stats(proxy.url)["cache"]
        assert (cache["answers_known"], cache["answers_unknown"]) == (2, 1)

    def test_ttft_is_seen_of_treated_and_of_untreated_requests(self, proxy: RunningProxy) -> None:
        for blocks in (BLOCKS, None):
            post_chat(proxy.url, chat([user("Q?")], blocks, stream=True))
        text = fetch(proxy.url, "GET", "/metrics").body.decode()
        for treated in ("yes", "no"):
            assert metric(text, "prefixpilot_ttft_seconds_count", treated=treated) == 1
            assert metric(text, "prefixpilot_request_seconds_count", treated=treated) == 1

    def test_annotations_are_counted_by_kind_and_with_their_cost(self, proxy: RunningProxy) -> None:
        first = chat([user("Q?")], BLOCKS)
        post_chat(proxy.url, first, X_PrefixPilot_Conversation="c")
        turns = [user("Q?"), {"role": "assistant", "content": "This is a simulated answer."}, user("And?")]
        post_chat(proxy.url, chat(turns, BLOCKS[:2]), X_PrefixPilot_Conversation="c")
        stats = self.stats(proxy.url)
        assert stats["annotations"]["location"] == 2
        assert stats["cache"]["annotation_tokens"] > 0
        assert stats["cache"]["replaced_tokens"] > 0

    def test_labels_are_fixed(self, proxy: RunningProxy) -> None:
        post_chat(proxy.url, chat([user("a question of the client")], BLOCKS), Authorization="Bearer the-key")
        fetch(proxy.url, "GET", "/some/path")
        text = fetch(proxy.url, "GET", "/metrics").body.decode()
        for word in ("a question", "the-key", "some/path", "default"):
            assert word not in text


def test_readiness_says_what_is_missing() -> None:
    with serve_in_thread(ProxySettings("http://127.0.0.1:9", port=0)) as proxy:
        answer = fetch(proxy.url, "GET", "/readyz")
    assert answer.status == 503
    assert answer.json()["ready"] is False and "did not answer" in answer.json()["missing"][0]


def open_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=10)


def raw_exchange(url: str, data: bytes) -> Answer:
    """Send bytes and read the answer."""
    with open_socket(url) as client:
        with contextlib.suppress(OSError):
            client.sendall(data)
        response = http.client.HTTPResponse(client)
        response.begin()
        return Answer(response.status, response.getheaders(), response.read())
