"""Responses live in the engine that made them: what goes on from one, or is about one, goes there and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.errors import InvariantError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.fleet.responses import MAX_ID_CHARS, ResponseHomes, named_in, previous_of
from prefixpilot.proxy.fleet.settings import FleetSettings

from ..raw_engine import RawEngine, RawRequest, plain
from ..support import Answer, fetch
from ..watched import until

QUICK = FleetSettings(check_interval=0.05, eject_after=2)
SLOW = FleetSettings(check_interval=60, eject_after=2)
IDS = st.sampled_from(["a", "b", "c", "d", "x" * (MAX_ID_CHARS + 1)])


@dataclass
class Keeper:
    """An engine that keeps its responses, and answers about no others."""

    number: int
    kept: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    counted: Iterator[int] = field(default_factory=count)
    status: bytes = b"200 OK"
    gone: bool = False

    def __call__(self, request: RawRequest) -> bytes | None:
        if self.gone:
            return None
        method, target, _ = request.lines[0].decode().split(" ")
        if target == "/health":
            return plain()
        self.asked.append(f"{method} {target}")
        if self.status != b"200 OK":
            return plain(self.status)
        if (method, target) in (("POST", "/v1/responses"), ("POST", "/responses")):
            return self._made(json.loads(request.body))
        name = target.removeprefix("/v1/responses/").partition("?")[0].partition("/")[0]
        return plain(b"200 OK" if name in self.kept or name == "input_tokens" else b"404 Not Found", name.encode())

    def _made(self, body: Any) -> bytes:
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            return _json(b"404 Not Found", {"error": {"message": f"{previous} is not found"}})
        name = f"resp_{self.number}_{next(self.counted)}"
        self.kept.add(name)
        begun = {"id": name, "object": "response", "status": "queued" if body.get("background") else "in_progress"}
        if not body.get("stream"):
            return _json(b"200 OK", begun)
        events = [{"type": "response.created", "response": begun}, {"type": "response.completed", "response": begun}]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return plain(b"200 OK", text.encode(), b"content-type: text/event-stream")


def _json(status: bytes, body: Any) -> bytes:
    return plain(status, json.dumps(body).encode(), b"content-type: application/json")


@contextmanager
def setup(
    fleet: FleetSettings = SLOW, routing: Literal["round_robin", "context_aware"] = "round_robin"
) -> Iterator[tuple[RunningProxy, list[Keeper]]]:
    """Two engines by turns, so that what goes to its own goes there for no other reason."""
    keepers = [Keeper(0), Keeper(1)]
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(RawEngine(keeper)).url for keeper in keepers)
        given = ProxySettings(urls[0], engines=urls, port=0, drain_timeout=2, fleet=fleet, routing=routing)
        yield stack.enter_context(serve_in_thread(given)), keepers


def make(running: RunningProxy, path: str = "/v1/responses", **more: Any) -> Answer:
    return fetch(running.url, "POST", path, {"input": "Go on.", **more}, {"Content-Type": "application/json"})


def id_of(answer: Answer) -> str:
    """Of a whole answer, or of a stream."""
    assert answer.status == 200
    _, found, rest = answer.body.decode().partition('"id": "')
    assert found
    return rest.partition('"')[0]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True}, {"context_blocks": ["One.", "Two."]}])
@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_what_goes_on_from_a_response_goes_to_the_engine_that_made_it(more: dict[str, Any], path: str) -> None:
    with setup() as (running, _):
        first = make(running, path, **more)
        home, name = first.header("X-PrefixPilot-Engine"), id_of(first)
        other = make(running)
        assert other.header("X-PrefixPilot-Engine") != home
        for _ in range(3):
            answer = make(running, path, **more, previous_response_id=name)
            assert answer.header("X-PrefixPilot-Engine") == home
            name = id_of(answer)


@pytest.mark.parametrize(
    ("method", "below"),
    [("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items?limit=2")],
)
def test_what_is_about_a_response_goes_there_too(method: str, below: str) -> None:
    with setup() as (running, keepers):
        names = [id_of(make(running)) for _ in range(4)]
        for name in (*names, *reversed(names)):
            assert fetch(running.url, method, f"/v1/responses/{name}{below}").status == 200
        for keeper in keepers:
            about = [line for line in keeper.asked if line.startswith(f"{method} /v1/responses/")]
            assert len(about) == 4


def test_a_body_below_the_path_that_goes_on_from_a_response() -> None:
    with setup() as (running, keepers):
        name = id_of(make(running))
        home = next(keeper for keeper in keepers if name in keeper.kept)
        for _ in range(3):
            body = {"input": "How long?", "previous_response_id": name}
            assert fetch(running.url, "POST", "/v1/responses/input_tokens", body).status == 200
        assert home.asked.count("POST /v1/responses/input_tokens") == 3


def test_an_id_that_nobody_knows_goes_as_any_other_and_the_engine_answers_for_it() -> None:
    with setup() as (running, keepers):
        for _ in range(2):
            answer = make(running, previous_response_id="resp_of_another_day")
            assert (answer.status, answer.json()["error"]["message"]) == (404, "resp_of_another_day is not found")
            assert fetch(running.url, "GET", "/v1/responses/resp_of_another_day").status == 404
        assert all("POST /v1/responses" in keeper.asked for keeper in keepers)
        assert make(running, previous_response_id=7).status == 404, "the engine is the one to refuse a body"


def refused(answer: Answer) -> bool:
    if answer.status != 503:
        return False
    error = answer.json()["error"]
    assert (error["code"], answer.header("Retry-After")) == ("response_unreachable", "1")
    return "no other has it" in error["message"]


def test_what_its_engine_says_is_the_answer_and_no_other_is_asked() -> None:
    with setup(QUICK) as (running, keepers):
        name = id_of(make(running))
        home = next(keeper for keeper in keepers if name in keeper.kept)
        away = keepers[1 - home.number]
        home.status = b"503 Busy"
        before = len(away.asked)
        answer = make(running, previous_response_id=name)
        assert (answer.status, answer.header("X-PrefixPilot-Engine")) == (503, str(home.number)), "as the engine said"
        assert len(away.asked) == before


def test_an_engine_that_has_gone_is_waited_for() -> None:
    with setup(QUICK) as (running, keepers):
        name = id_of(make(running))
        home = next(keeper for keeper in keepers if name in keeper.kept)
        home.gone = True
        assert until(lambda: not fetch(running.url, "GET", "/stats").json()["engines"][home.number]["fit"])
        before = len(keepers[1 - home.number].asked)
        assert refused(make(running, previous_response_id=name))
        assert refused(fetch(running.url, "GET", f"/v1/responses/{name}"))
        assert len(keepers[1 - home.number].asked) == before
        assert make(running).status == 200
        home.gone = False
        assert until(lambda: make(running, previous_response_id=name).status == 200)


def test_a_drained_engine_still_tells_of_its_responses_and_makes_no_new_ones() -> None:
    with setup() as (running, keepers):
        name = id_of(make(running, background=True))
        home = next(keeper for keeper in keepers if name in keeper.kept).number
        assert fetch(running.url, "POST", f"/engines/{home}/drain", b"").status == 200
        for method, below in (("GET", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("DELETE", "")):
            assert fetch(running.url, method, f"/v1/responses/{name}{below}").status == 200
        assert refused(make(running, previous_response_id=name))
        assert fetch(running.url, "POST", f"/engines/{home}/resume", b"").status == 200
        assert make(running, previous_response_id=name).header("X-PrefixPilot-Engine") == str(home)


@given(st.lists(st.tuples(st.booleans(), IDS, st.integers(0, 2)), max_size=30), st.integers(1, 3))
def test_homes_beside_a_list(steps: list[tuple[bool, str, int]], most: int) -> None:
    """The list has what is known, the most recently used last."""
    homes = ResponseHomes(most)
    known: list[tuple[str, int]] = []
    for made, name, engine in steps:
        expected = dict(known).get(name)
        if made:
            homes.made(name, engine)
            expected = engine if len(name) <= MAX_ID_CHARS else None
        else:
            assert homes.of(name) == expected
        if expected is not None:
            known = [*(pair for pair in known if pair[0] != name), (name, expected)][-most:]
        homes.check_invariants()
        assert len(homes) == len(known)
    assert {name: homes.of(name) for name in "abcd"} == {name: dict(known).get(name) for name in "abcd"}
    assert homes.of(None) is None


def test_more_than_the_bound_is_noticed() -> None:
    homes = ResponseHomes(1)
    homes._engine.update(a=0, b=1)
    with pytest.raises(InvariantError, match="holds 2 responses of 1"):
        homes.check_invariants()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (b"/v1/responses/resp_1", None, "resp_1"),
        (b"/responses/resp%5F1/input_items", None, "resp_1"),
        (b"/v1/responses/compact", b'{"previous_response_id": "resp_2"}', "resp_2"),
        (b"/v1/responses/resp_1/cancel", b"no JSON", "resp_1"),
        (b"/v1/responses/\xff", None, "\xff"),
        (b"/v1/responses/", None, ""),
        (b"/v1/models/resp_1", None, None),
        (b"/v1/responsesx/resp_1", None, None),
    ],
)
def test_what_a_path_names(path: bytes, body: bytes | None, named: str | None) -> None:
    assert named_in(path, body) == named


@pytest.mark.parametrize(
    ("body", "previous"), [({"previous_response_id": "r"}, "r"), ({"previous_response_id": 7}, None), ({}, None)]
)
def test_what_a_body_goes_on_from(body: dict[str, Any], previous: str | None) -> None:
    assert previous_of(body) == previous
