"""Several engines behind one proxy, over real sockets: who gets what, what is tried again, and what never is."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.differential.routes import Wire
from tests.differential.runs import Script, converse

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.faults import BreakOff, CloseConnection, Respond, Stall
from prefixpilot.testing.page_pool import PagePool

from ..raw_engine import RawEngine, RawRequest, plain
from ..support import Answer, Messages, assistant, chat, fetch, metric, post_chat, user
from ..watched import total, until

SLOW = FleetSettings(check_interval=60, eject_after=2)
"""No look after the first one, so that requests alone say what is wrong."""
QUICK = FleetSettings(check_interval=0.05, eject_after=2)
DOCUMENTS = [f"Report {n}. " + f"{n} apples. " * 60 for n in range(12)]


@contextmanager
def engines(count: int) -> Iterator[list[SimulatedEngine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(SimulatedEngine()) for _ in range(count)]


@contextmanager
def proxy(urls: Sequence[str], fleet: FleetSettings = SLOW, **settings: Any) -> Iterator[RunningProxy]:
    given = ProxySettings(urls[0], engines=tuple(urls), port=0, drain_timeout=2, fleet=fleet, **settings)
    with serve_in_thread(given) as running:
        yield running


def urls_of(fleet: Sequence[SimulatedEngine]) -> list[str]:
    return [engine.base_url for engine in fleet]


def engine_of(answer: Answer) -> int:
    number = answer.header("X-PrefixPilot-Engine")
    assert number is not None
    return int(number)


def text(running: RunningProxy) -> str:
    return fetch(running.url, "GET", "/metrics").body.decode()


def standing(running: RunningProxy) -> list[bool]:
    return [each["fit"] for each in fetch(running.url, "GET", "/stats").json()["engines"]]


def posts(engine: SimulatedEngine) -> list[bytes]:
    return [request.body for request in engine.requests if request.method == "POST"]


def ask(running: RunningProxy, n: int, blocks: Any = None, **more: Any) -> Answer:
    return post_chat(running.url, chat([user(f"Question {n}?")], blocks, **more))


def test_requests_with_equal_documents_meet_and_the_answer_says_where() -> None:
    with engines(3) as fleet, proxy(urls_of(fleet)) as running:
        seen = [engine_of(ask(running, n, DOCUMENTS[4 * (n % 3) : 4 * (n % 3) + 4])) for n in range(9)]
        assert sorted(seen[:3]) == [0, 1, 2]
        assert seen == seen[:3] * 3
        assert [len(posts(engine)) for engine in fleet] == [3, 3, 3]
        shown = text(running)
        for number in range(3):
            assert metric(shown, "prefixpilot_fleet_requests_total", engine=str(number)) == 3
            assert metric(shown, "prefixpilot_fleet_cached_tokens_total", engine=str(number)) > 300
            assert metric(shown, "prefixpilot_fleet_in_flight", engine=str(number)) == 0
            assert metric(shown, "prefixpilot_fleet_prefill_tokens", engine=str(number)) == 0
        stats = fetch(running.url, "GET", "/stats").json()["engines"]
        assert [each["url"] for each in stats] == urls_of(fleet)


def test_a_conversation_stays_where_its_history_is() -> None:
    messages: Messages = []
    seen = set()
    with engines(3) as fleet, proxy(urls_of(fleet)) as running:
        for n in range(5):
            messages.append(user(f"Question {n}? " + "Tell me more of it. " * 40))
            seen.add(engine_of(post_chat(running.url, chat(messages))))
            messages.append(assistant("An answer. " * 20))
            ask(running, 100 + n)
    assert len(seen) == 1


def test_one_engine_has_no_header_and_no_table() -> None:
    with engines(1) as fleet, serve_in_thread(ProxySettings(fleet[0].base_url, port=0)) as running:
        assert ask(running, 0).header("X-PrefixPilot-Engine") is None
        assert "prefixpilot_fleet" not in text(running)
        assert "engines" not in fetch(running.url, "GET", "/stats").json()
        assert "engines" not in fetch(running.url, "GET", "/readyz").json()


def after_the_first_look(running: RunningProxy, fleet: Sequence[SimulatedEngine]) -> None:
    """On a busy machine it may come after the first requests, and would count as one of the failures."""
    assert fleet[0].wait_for_requests(1)
    assert fetch(running.url, "GET", "/readyz").status == 200


@pytest.mark.parametrize(
    "fault", [CloseConnection(), Respond(503), Respond(502, b"gone")], ids=["closed", "503", "502"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_did_not_begin_to_answer_is_asked_elsewhere_with_the_same_bytes(fault: Any, stream: bool) -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        fleet[0].fault = fault
        answer = ask(running, 0, DOCUMENTS[:3], stream=stream)
        assert (answer.status, engine_of(answer)) == (200, 1)
        sent = posts(fleet[0])
        assert set(sent) == set(posts(fleet[1])) and len(posts(fleet[1])) == 1
        assert len(sent) == 1 or (len(sent) == 2 and isinstance(fault, CloseConnection)), "twice if a look left its way"
        assert metric(text(running), "prefixpilot_fleet_retried_total", engine="0") == 1


def test_an_engine_that_is_not_there_is_left_out_after_two_tries() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet), routing="round_robin") as running:
        after_the_first_look(running, fleet)
        fleet[0].stop()
        assert [engine_of(ask(running, n)) for n in range(6)] == [1] * 6
        shown = text(running)
        assert metric(shown, "prefixpilot_fleet_retried_total", engine="0") == 2
        assert metric(shown, "prefixpilot_fleet_ejections_total", engine="0") == 1
        assert metric(shown, "prefixpilot_fleet_up", engine="0") == 0
        ready = fetch(running.url, "GET", "/readyz")
        assert ready.status == 200
        assert [each["fit"] for each in ready.json()["engines"]] == [False, True]
        assert ready.json()["degraded"] == [f"the engine at {urls_of(fleet)[0]} gets no requests"]


def test_an_engine_that_fails_its_first_look_is_told_before_it_is_left_out() -> None:
    with engines(3) as fleet, proxy(urls_of(fleet), FleetSettings(check_interval=60, eject_after=9)) as running:
        fleet[0].fault = Respond(500)
        fleet[2].stop()
        ready = fetch(running.url, "GET", "/readyz")
        assert ready.status == 200
        assert [each["fit"] for each in ready.json()["engines"]] == [True] * 3
        answers, gone = ready.json()["degraded"]
        assert answers == f"the engine at {urls_of(fleet)[0]} answers GET /health with 500"
        assert gone.startswith(f"the engine at {urls_of(fleet)[2]} did not answer: ")


def test_what_all_refuse_reaches_the_client_as_the_last_one_said_it() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        for n, engine in enumerate(fleet):
            engine.fault = Respond(503, b'{"busy": %d}' % n)
        answer = ask(running, 0)
        assert (answer.status, answer.body) == (503, b'{"busy": 1}')
        assert standing(running) == [True, True], "busy is not broken"


def test_another_error_of_an_engine_is_its_answer() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        fleet[0].fault = Respond(500)
        assert ask(running, 0).status == 500
        assert posts(fleet[1]) == []


def test_an_answer_that_has_begun_is_never_begun_again() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        fleet[0].fault = BreakOff(1)
        with pytest.raises(http.client.IncompleteRead):
            ask(running, 0, DOCUMENTS[:3], stream=True)
        assert (len(posts(fleet[0])), len(posts(fleet[1]))) == (1, 0)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_other_requests_are_repeated_only_if_that_does_no_harm(method: str) -> None:
    """A POST may have been acted upon; what was never seen by an engine may be sent again whatever it is."""
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        fleet[0].fault = CloseConnection()
        answer = fetch(running.url, method, "/v1/things", b"{}" if method == "POST" else None)
        assert answer.status == (502 if method == "POST" else 200)
        fleet[0].stop()
        assert fetch(running.url, "GET", "/v1/things").status == 200


def test_a_request_that_was_not_seen_goes_elsewhere_whatever_it_is() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        fleet[0].stop()
        assert fetch(running.url, "POST", "/v1/embeddings", b'{"model": "m", "input": "x"}').status == 200
        assert [request.path for request in fleet[1].requests if request.method == "POST"] == ["/v1/embeddings"]


def test_none_is_fit() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet), QUICK) as running:
        for engine in fleet:
            engine.stop()
        assert until(lambda: standing(running) == [False, False])
        answer = ask(running, 0)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_engine")
        assert answer.header("Retry-After") == "1"
        assert fetch(running.url, "GET", "/v1/models").status == 503
        ready = fetch(running.url, "GET", "/readyz")
        assert ready.status == 503 and "none of 2 engines is fit" in ready.json()["missing"][0]


def test_an_engine_that_drains_goes_and_comes_back() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet), QUICK) as running:
        fleet[0].fault = Respond(503)
        assert until(lambda: standing(running) == [False, True])
        assert [engine_of(ask(running, n)) for n in range(4)] == [1] * 4
        fleet[0].fault = None
        assert until(lambda: standing(running) == [True, True])
        assert {engine_of(ask(running, 100 + n, DOCUMENTS[n : n + 1])) for n in range(4)} == {0, 1}


def test_an_engine_that_hangs_is_noticed_by_looks_and_its_request_is_not_repeated() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet), QUICK, ready_timeout=0.2, idle_timeout=1.5) as running:
        fleet[0].delay_s = 30
        answer = ask(running, 0)
        assert answer.status == 504
        assert until(lambda: standing(running) == [False, True])
        assert ask(running, 1).status == 200
        assert len(posts(fleet[0])) == 1


def test_a_client_that_leaves_does_not_count_against_the_engine() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        for engine in fleet:
            engine.fault = Stall(1)
        for n in range(4):
            connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=10)
            connection.request("POST", "/v1/chat/completions", json.dumps(chat([user(f"{n}?")], stream=True)))
            connection.getresponse().read(1)
            connection.close()
        assert until(lambda: not fetch(running.url, "GET", "/stats").json()["sizes"]["in_flight"])
        assert standing(running) == [True, True]
        stats = fetch(running.url, "GET", "/stats").json()["engines"]
        assert [(each["in_flight"], each["prefill_tokens"]) for each in stats] == [(0, 0), (0, 0)]


class Flaky:
    """Answers of a raw engine. One that is ``flaky`` refuses every third request without a byte, and again on a new
    connection; noted apart. ``Connection`` is about such a connection, and no header of the client's.
    """

    def __init__(self, flaky: bool, arrived: list[RawRequest], said: Callable[[], bytes]) -> None:
        self.flaky = flaky
        self.count = 0
        self.refused: list[bytes] = []
        self._arrived = arrived
        self._said = said

    def answer(self, request: RawRequest) -> bytes | None:
        if request.lines[0].startswith(b"GET"):
            return plain()
        self.count += 1
        if self.flaky and (self.count % 3 == 0 or request.body in self.refused):
            self.refused.append(request.body)
            return None
        self._arrived.append(replace(request, head=request.head.replace(b"\r\nconnection: close", b"")))
        return self._said()


class Together:
    """Several raw engines as one, as the differential test's wire wants it: what arrived, in order. Two are flaky."""

    def __init__(self, raw: Sequence[RawEngine], said: Callable[[], bytes]) -> None:
        self.requests: list[RawRequest] = []
        self.each = [Flaky(number % 2 == 0, self.requests, said) for number in range(len(raw))]
        for engine, flaky in zip(raw, self.each, strict=True):
            engine.answer = flaky.answer


class FleetWire(Wire):
    """See :class:`Wire`."""

    def __init__(self, proxy_url: str, raw: Sequence[RawEngine]) -> None:
        self.together = Together(raw, lambda: self._said())
        super().__init__(proxy_url, raw[0])
        self._engine = self.together  # type: ignore[assignment]
        raw[0].answer = self.together.each[0].answer


@pytest.mark.parametrize("script", ["blocks", "ordinary"])
def test_random_conversations_keep_their_promises_whichever_engine_they_meet(script: Script) -> None:
    seen: Counter[str] = Counter()
    patient = FleetSettings(check_interval=60, eject_after=1000, retries=3)
    with ExitStack() as stack:
        raw = [stack.enter_context(RawEngine()) for _ in range(4)]
        running = stack.enter_context(proxy([engine.url for engine in raw], patient))
        wire = FleetWire(running.url, raw)
        together = wire.together
        for number in range(15):
            assert converse(wire, script, 4, number, seen) is None
        used = [flaky.count for flaky in together.each]
        bodies = {request.body for request in together.requests}
        refused = [body for flaky in together.each for body in flaky.refused]
        retried = total(text(running), "prefixpilot_fleet_retried_total")
    assert min(used) > 5, "all of them were asked"
    assert retried > 5 and bodies.issuperset(refused), "what one refused another got, byte for byte"
    assert seen["requests"] > 30 and seen["kept"] > 0


class Session(threading.Thread):
    """A client with a conversation of its own: one streamed turn after another, each with documents."""

    def __init__(self, url: str, number: int, turns: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.turns = url, number, turns
        self.right = 0
        self.wrong: list[str] = []
        self.broken: list[int | None] = []

    def run(self) -> None:
        messages: Messages = []
        for n in range(self.turns):
            token = f"<{self.number}.{n}>"
            messages.append(user(f"Say {token}"))
            blocks = [DOCUMENTS[(self.number + i) % 12] for i in range(3)]
            answer = self.ask(chat(messages, blocks, stream=True))
            if answer is None:
                messages.pop()
                continue
            said = "".join(
                choice["delta"].get("content") or ""
                for line in answer.split(b"\n\n")
                if line.startswith(b"data: {")
                for choice in json.loads(line[6:])["choices"]
            )
            if said == f"You said {token}":
                self.right += 1
            else:
                self.wrong.append(said)
            messages.append(assistant(said))

    def ask(self, body: dict[str, Any]) -> bytes | None:
        """The whole stream; ``None`` if it broke off, and then where."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        where: int | None = None
        try:
            headers = {"X-PrefixPilot-Conversation": str(self.number)}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            engine = response.getheader("X-PrefixPilot-Engine")
            where = None if engine is None else int(engine)
            data = response.read()
            if response.status != 200:
                self.wrong.append(f"{response.status} {data!r}")
                return None
            return data
        except (http.client.HTTPException, OSError):
            self.broken.append(where)
            return None
        finally:
            connection.close()


def echo(body: Any) -> str:
    content = body["messages"][-1]["content"]
    return "You said " + str(content)[str(content).rindex("<") :]


def test_an_engine_that_dies_under_load_breaks_its_own_streams_and_nothing_else() -> None:
    with engines(3) as fleet, proxy(urls_of(fleet), QUICK) as running:
        for engine in fleet:
            engine.reply, engine.chunk_delay_s = echo, 0.01
        sessions = [Session(running.url, number, 8) for number in range(12)]
        for session in sessions:
            session.start()
        assert fleet[1].wait_for_requests(20)
        fleet[1].stop()
        for session in sessions:
            session.join(60)
        assert not any(session.is_alive() for session in sessions)
        assert [wrong for session in sessions for wrong in session.wrong] == []
        broken = [where for session in sessions for where in session.broken]
        assert set(broken) <= {1}, "only streams that had begun there"
        assert sum(session.right for session in sessions) == 12 * 8 - len(broken)
        for body in (*posts(fleet[0]), *posts(fleet[2])):
            messages = json.loads(body)["messages"]
            earlier = "\n\n".join(str(message["content"]) for message in messages)
            assert all(f"[Doc {n}]" not in earlier.partition(f"[Doc {n}]\n")[0] for n in range(1, 4))
        assert standing(running) == [True, False, True]


def test_each_engine_has_a_picture_of_its_own() -> None:
    with ExitStack() as stack:
        publishers = [EventPublisher() for _ in range(2)]
        fleet = [
            stack.enter_context(SimulatedEngine(pages=PagePool(400, 16), events=publisher)) for publisher in publishers
        ]
        cache = CacheSettings(
            events=",".join(p.endpoint for p in publishers),
            replay=",".join(p.replay_endpoint or "" for p in publishers),
        )
        running = stack.enter_context(proxy(urls_of(fleet), cache=cache))

        def pictures() -> list[dict[str, Any]]:
            return [each["engine_cache"] for each in fetch(running.url, "GET", "/stats").json()["engines"]]

        def live() -> int:
            return int(fetch(running.url, "GET", "/stats").json()["sizes"]["live_requests"])

        where = [engine_of(ask(running, n, DOCUMENTS[3 * (n % 2) : 3 * (n % 2) + 3])) for n in range(8)]
        assert sorted(set(where)) == [0, 1]
        assert until(lambda: all(each["contexts"] == 4 for each in pictures()))
        assert until(lambda: [each["pages"] for each in pictures()] == [e.pages.pool.named_pages for e in fleet])  # type: ignore[union-attr]
        assert live() == 8
        fetch(fleet[0].base_url, "POST", "/reset_prefix_cache", {})
        ask(running, 100, ["Nothing like the others. " * 20])
        assert until(lambda: pictures()[0]["contexts"] <= 1)
        assert until(lambda: live() == 5), "what the other one holds stays"
        assert fetch(running.url, "GET", "/stats").json()["engine_cache"]["followed"] is True


def test_endpoints_that_are_not_as_many_for_each() -> None:
    with pytest.raises(ConfigError, match=r"cache.events: has 3 endpoints for 2 engines"):
        cache = CacheSettings(events="tcp://a:1,tcp://b:1,tcp://c:1")
        ProxySettings("http://a:1", engines=("http://a:1", "http://b:1"), cache=cache)


def test_looks_do_not_outlive_the_proxy() -> None:
    with engines(2) as fleet:
        with proxy(urls_of(fleet), QUICK):
            assert fleet[1].wait_for_requests(3)
        count = len(fleet[1].requests)
        time.sleep(0.3)
        assert len(fleet[1].requests) == count
