"""Each cause of a miss, brought about on an engine and seen where an operator looks: `/plans`, `/stats`, `/metrics` and
``prefixpilot top``. Over real sockets; what each cause is told from is in ``test_causes`` and ``test_seven_causes``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.cache import tracker
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.chat_wire import Chat
from prefixpilot.testing.engine_pages import EnginePages, Running
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool

from ..support import chat, fetch, metric, post_chat, user
from .support import PAGE, SYSTEM, Followed, followed, texts
from .test_hosted_view import hosted, prompt
from .test_volatile_text import FRONT, REST

DOCUMENTS = texts(5, 40)
LAST = "last"
"""The id of the request that misses."""


@dataclass(frozen=True)
class Miss:
    """What came of it, and where the proxy is."""

    url: str
    engine: dict[str, Any]


def miss(setup: Followed, blocks: Sequence[str] = DOCUMENTS, **more: Any) -> Miss:
    """One request more."""
    body = chat([SYSTEM, user("And the last one?")], list(blocks), **more)
    assert post_chat(setup.url, body, X_Request_Id=LAST).status == 200
    setup.settled(setup.asked + 1)
    return Miss(setup.url, setup.plan(LAST)["engine"])


@contextmanager
def evicted() -> Iterator[Miss]:
    """The engine holds less than was thought, and does not tell what goes."""
    with followed(60, events="off", token_ids="engine", page_size=PAGE, cache_tokens=6000 * PAGE) as setup:
        for blocks in (DOCUMENTS, *(texts(5, 40, seed) for seed in range(1, 6))):
            setup.ask(blocks)
        yield miss(setup)


@contextmanager
def below_page_size() -> Iterator[Miss]:
    """Its pages are smaller than was said."""
    with followed(600, events="off", token_ids="engine", page_size=3 * PAGE, cache_tokens=600 * PAGE) as setup:
        setup.ask(DOCUMENTS)
        found = miss(setup)
        assert 0 < found.engine["reported"] - found.engine["predicted"] < 3 * PAGE
        yield found


@contextmanager
def template() -> Iterator[Miss]:
    """`/tokenize` renders another template than the one that chats are computed with."""
    with followed(600) as setup:
        setup.in_state("EXACT")
        setup.ask(DOCUMENTS)
        setup.settled()
        other = OtherTemplate(setup.pool, setup.publisher)
        setup.engine.pages = other
        yield miss(setup)


class OtherTemplate(EnginePages):
    """Counts another head in front of each prompt than it computes."""

    def answer(self, asked: str, body: bytes, window: int | None) -> tuple[int, bytes] | None:
        if asked != "POST /tokenize":
            return super().answer(asked, body, window)
        asking = json.loads(body)
        asking["messages"] = [{"role": "system", "content": "An assistant of another kind."}, *asking["messages"]]
        return super().answer(asked, json.dumps(asking).encode(), window)


@contextmanager
def volatile_text() -> Iterator[Miss]:
    with followed(600) as setup:
        setup.in_state("EXACT")
        for minute in range(3):
            setup.ask(DOCUMENTS, system=f"{FRONT}{minute}:30\n{REST}", X_Request_Id=LAST)
        setup.settled()
        yield Miss(setup.url, setup.plan(LAST)["engine"])


@contextmanager
def salt_or_adapter() -> Iterator[Miss]:
    """A gateway between proxy and engine salts prompts, and has changed its salt."""
    with pytest.MonkeyPatch.context() as patch, followed(600) as setup:
        patch.setattr(tracker, "HOLD_S", 0.2)  # no event of theirs is known as such
        setup.in_state("EXACT")
        gateway = Salting(setup.pool, setup.publisher)
        setup.engine.pages = gateway
        setup.ask(DOCUMENTS)
        setup.settled()
        gateway.salt = "another"
        yield miss(setup)


class Salting(EnginePages):
    """Its prompts come with a salt that the proxy has not seen."""

    salt = "one"

    async def begin(self, chat: Chat) -> Running:
        return await super().begin(replace(chat, salt=self.salt))


@contextmanager
def routed_elsewhere() -> Iterator[Miss]:
    """Two ranks behind one address take requests by turns; the first has more of this one."""
    ranks = Ranks()
    with SimulatedEngine(pages=PagePool(1, PAGE)) as engine, ranks.publishing():
        setattr(engine, "pages", ranks)  # noqa: B010
        cache = CacheSettings(events=",".join(ranks.endpoints), replay=",".join(ranks.replays), token_ids="engine")
        with serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, cache=cache)) as proxy:
            setup = Followed(engine, ranks.pages[0].pool, None, proxy)
            setup.in_state("EXACT")
            for blocks in (DOCUMENTS, DOCUMENTS[:2]):
                setup.ask(blocks)
                setup.settled()
            ranks.turn = 1
            yield miss(setup)


@dataclass
class Ranks:
    """Two caches in one engine, each with its publisher; in the place of an engine's pages."""

    turn: int = 0
    publishers: tuple[EventPublisher, ...] = field(default_factory=lambda: (EventPublisher(), EventPublisher(rank=1)))
    publisher: None = None

    def __post_init__(self) -> None:
        self.pages = [EnginePages(PagePool(600, PAGE), publisher) for publisher in self.publishers]

    @property
    def endpoints(self) -> list[str]:
        return [publisher.endpoint for publisher in self.publishers]

    @property
    def replays(self) -> list[str]:
        return [str(publisher.replay_endpoint) for publisher in self.publishers]

    @contextmanager
    def publishing(self) -> Iterator[None]:
        with self.publishers[0], self.publishers[1]:
            yield

    async def begin(self, chat: Chat) -> Running:
        pages = self.pages[self.turn]
        self.turn = 1 - self.turn
        return await pages.begin(chat)

    def answer(self, asked: str, body: bytes, window: int | None) -> tuple[int, bytes] | None:
        return self.pages[0].answer(asked, body, window)


@contextmanager
def ttl() -> Iterator[Miss]:
    """A hosted provider's entry has outlived its time."""
    with hosted("anthropic") as setup:
        setup.ask("messages", prompt("messages", "First?", ["A document."]))
        setup.clock[0] += 800.0
        yield Miss(setup.proxy.url, setup.finding("messages", prompt("messages", "Second?", ["A document."])))


@contextmanager
def more_than_known() -> Iterator[Miss]:
    """Somebody else sends the same prompts to the engine, past the proxy."""
    with followed(600, events="off", token_ids="engine", page_size=PAGE, cache_tokens=600 * PAGE) as setup:
        setup.ask(DOCUMENTS)
        fetch(setup.url, "POST", "/reset")
        past = dict(setup.engine.chats[-1].json())
        past["messages"] = [past["messages"][0], {"role": "user", "content": "Past the proxy, " * 40}]
        assert post_chat(setup.engine.base_url, past).status == 200
        body = {**past, "messages": [*past["messages"], {"role": "assistant", "content": "ok"}, user("And?")]}
        assert post_chat(setup.url, chat(body["messages"], DOCUMENTS), X_Request_Id=LAST).status == 200
        setup.settled(2)
        yield Miss(setup.url, setup.plan(LAST)["engine"])


@contextmanager
def picture_wrong() -> Iterator[Miss]:
    """The engine forgets all that it holds, and does not tell."""
    with followed(600) as setup:
        setup.in_state("EXACT")
        setup.ask(DOCUMENTS)
        setup.settled()
        assert setup.engine.pages is not None and setup.engine.pages.begin_anew()
        yield miss(setup)


CAUSES: list[Callable[[], Any]] = [
    evicted,
    below_page_size,
    template,
    volatile_text,
    salt_or_adapter,
    routed_elsewhere,
    ttl,
    more_than_known,
    picture_wrong,
]


@pytest.mark.parametrize("bring_about", CAUSES, ids=lambda case: str(case.__name__))
def test_a_cause_is_seen_wherever_an_operator_looks(
    bring_about: Callable[[], Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = bring_about.__name__.replace("_", "-")
    monkeypatch.setenv("COLUMNS", "160")  # a row is cut at the edge of the terminal
    with bring_about() as miss:
        assert miss.engine["cause"] == cause, miss.engine
        assert fetch(miss.url, "GET", "/stats").json()["engine_cache"]["causes"][cause] >= 1
        assert metric(fetch(miss.url, "GET", "/metrics").body.decode(), "prefixpilot_engine_misses_total", cause=cause)
        assert main(["top", miss.url, "--once"]) == 0
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.split("\n") if line.startswith("causes")]
    assert f"{cause} " in row
    assert shown.rstrip().count(cause) >= 2, "the route's row names it too"
