"""Seven kinds of misses side by side, each with its own cause, however many others could be suspected."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefixpilot import ContextPilot, Request
from prefixpilot.apis import CHAT
from prefixpilot.cache_events import PagesRemoved
from prefixpilot.core import Plan
from prefixpilot.prompts import render_blocks
from prefixpilot.providers.limits import builtin_limits
from prefixpilot.proxy.cache.fronts import Fronts, front_of
from prefixpilot.proxy.cache.hosted_view import HostedView
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import Facts, Watch
from prefixpilot.testing.chat_wire import template, tokenize
from prefixpilot.testing.engine_pages import token_ids

from .test_view import NO_FACTS, SIZE, Desk, names, stored

FRONT = "You help with the timetable of the town and its library, and you name the document that you used."
DOCUMENTS = ["The library opens at nine on weekdays.", "The tram stops at the bridge.", "The pool closes at noon."]


@dataclass
class Bench:
    """An engine's picture, prompts as the simulated engine reads them, and the fronts sent so far."""

    desk: Desk = field(default_factory=Desk)
    pilot: ContextPilot = field(default_factory=ContextPilot)
    fronts: Fronts = field(default_factory=Fronts)
    asked: int = 0

    def sent(self, front: str, documents: Sequence[str], facts: Facts = NO_FACTS) -> Watch:
        """A request goes out: planned, tokenized, predicted, its front compared."""
        self.asked += 1
        plan: Plan = self.pilot.optimize(Request.from_texts(f"r{self.asked}", list(documents)))
        said = [{"role": "system", "content": front}, {"role": "user", "content": render_blocks(plan) + "\n\nWhen?"}]
        text = template(said)
        watch = self.desk.sent([], (plan,), facts, known=False)
        watch.prompt = EnginePrompt(array("I", token_ids(text)), tuple(token.encode() for token in tokenize(text)))
        prompt = CHAT.read({"messages": said})
        assert prompt is not None
        watch.front = front_of(prompt, watch.plans, watch.prompt)
        watch.parting = self.fronts.parting("route", watch.front)
        watch.prediction = self.desk.view.predict(watch)
        return watch

    def had(self, watch: Watch, salt: str | None = None, rank: int = 0) -> list[int]:
        """The engine has computed it: its tokens."""
        assert watch.prompt is not None and watch.front is not None
        tokens = list(watch.prompt.token_ids)
        self.desk.batch(stored(tokens, salt=salt), rank=rank)
        self.fronts.add("route", watch.front)
        return tokens

    def cause(self, watch: Watch, reported: int | None = None) -> str:
        """The engine reports so many cached tokens, by default what it does hold."""
        assert watch.prompt is not None
        if reported is None:
            reported = 0 if watch.prediction is None else watch.prediction.tokens
        return str(self.desk.answered(watch, watch.prompt.tokens, reported)["cause"])


def evicted(bench: Bench, front: Callable[[int], str]) -> str:
    tokens = bench.had(bench.sent(front(0), DOCUMENTS))
    bench.desk.batch(PagesRemoved(tuple(names(tokens, "NoneNone")[3:])))
    return bench.cause(bench.sent(front(0), DOCUMENTS))


def below_page_size(bench: Bench, front: Callable[[int], str]) -> str:
    bench.had(bench.sent(front(0), DOCUMENTS))
    watch = bench.sent(front(0), DOCUMENTS)
    assert watch.prediction is not None
    return bench.cause(watch, watch.prediction.tokens - SIZE + 1)


def template_of_the_engine(bench: Bench, front: Callable[[int], str]) -> str:
    bench.had(bench.sent(front(0), DOCUMENTS))
    watch = bench.sent(front(0), DOCUMENTS)
    assert watch.prompt is not None
    return str(bench.desk.answered(watch, watch.prompt.tokens + 5, 0)["cause"])


def volatile_text(bench: Bench, front: Callable[[int], str]) -> str:
    bench.had(bench.sent(f"{FRONT}\nCurrent time: 2026-11-30 09:05", DOCUMENTS))
    return bench.cause(bench.sent(f"{FRONT}\nCurrent time: 2026-11-30 09:06", DOCUMENTS))


def salt(bench: Bench, front: Callable[[int], str]) -> str:
    bench.had(bench.sent(front(0), DOCUMENTS), salt="tenant-a")
    return bench.cause(bench.sent(front(0), DOCUMENTS, Facts("", "tenant-b")))


def routed_elsewhere(bench: Bench, front: Callable[[int], str]) -> str:
    tokens = bench.had(bench.sent(front(0), DOCUMENTS))
    bench.desk.batch(stored(tokens[: 2 * SIZE]), rank=1)
    return bench.cause(bench.sent(front(0), DOCUMENTS), 2 * SIZE)


def ttl(bench: Bench, front: Callable[[int], str]) -> str:
    view = HostedView("openai", builtin_limits())
    for sent_at, reported in ((0.0, 0), (7200.0, 0)):
        watch = bench.sent(front(0) * 60, DOCUMENTS, Facts("gpt-4o", None))
        assert watch.front is not None
        watch.sent_at = sent_at
        view.read(watch, CHAT.read({"messages": [{"role": "system", "content": front(0) * 60}]}))
        watch.prompt_tokens, watch.cached_tokens = 2000, reported
        found: Any = view.settle(watch).shown()
    return str(found["cause"])


KINDS: dict[str, Callable[[Bench, Callable[[int], str]], str]] = {
    "evicted": evicted,
    "below-page-size": below_page_size,
    "template": template_of_the_engine,
    "volatile-text": volatile_text,
    "salt-or-adapter": salt,
    "routed-elsewhere": routed_elsewhere,
    "ttl": ttl,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dated", [False, True], ids=["plain", "with-a-date"])
def test_each_kind_of_miss_has_its_own_cause(kind: str, dated: bool) -> None:
    """Also where a date stands in the front and other fronts were sent on the route, which have no part in it."""
    bench = Bench()
    front = f"{FRONT}\nToday is 2026-11-30." if dated else FRONT
    if dated:
        bench.had(bench.sent("Another application altogether, with its own words.", DOCUMENTS[:1]))
        bench.desk, bench.pilot = Desk(), ContextPilot()
    assert KINDS[kind](bench, lambda _: front) == kind


def test_all_kinds_are_seven() -> None:
    assert len(KINDS) == len(set(KINDS.values())) == 7


# -- volatile text, and what is none


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("{}\nCurrent time: 2026-11-30 09:05", "{}\nCurrent time: 2026-11-30 09:06", "clock"),
        ("Today's date: 2026-11-29.\n{}", "Today's date: 2026-11-30.\n{}", "date"),
        ("Request ID: 5f0c1177aa\n{}", "Request ID: 77aa5f0c11\n{}", "ids"),
        ("{}\nUser: Ada, seat 12.", "{}\nUser: Grace, seat 7.", "text"),
    ],
)
def test_what_changes_in_front_is_named_and_placed(before: str, after: str, kind: str) -> None:
    bench = Bench()
    first, second = before.format(FRONT), after.format(FRONT)
    tokens = bench.had(bench.sent(first, DOCUMENTS))
    watch = bench.sent(second, DOCUMENTS)
    assert bench.cause(watch) == "volatile-text"
    parting = watch.parting
    assert parting is not None and watch.prompt is not None
    offset = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert (parting.kind, parting.pointer, parting.offset) == (kind, ("messages", 0, "content"), offset)
    shared = next(i for i, (a, b) in enumerate(zip(tokens, watch.prompt.token_ids, strict=False)) if a != b)
    assert parting.tokens == shared


def test_another_front_is_no_volatile_text() -> None:
    bench = Bench()
    bench.had(bench.sent(FRONT, DOCUMENTS))
    watch = bench.sent("Quite another application: it translates poems, and never looks at a timetable.", DOCUMENTS)
    assert bench.cause(watch) != "volatile-text"
    assert watch.parting is not None and not watch.parting.volatile


@pytest.mark.parametrize(
    "new",
    [
        "{} The time is 2026-11-30T20:20:00Z. Be brief and kind.",
        "You help at the school by the river. The time is 2026-11-30T20:20:00Z. Be brief and kind. Nothing else.",
        "Today's date is 2026-11-30. Write a poem about whatever the documents tell, in rhymed couplets, and be kind.",
        "Request ID: 5f0c1177aa\nWrite a poem about whatever the documents tell, in rhymed couplets, and be kind.",
        "User Memories:\n- likes tea, and rhymed couplets about whatever the documents tell of the town\n",
        "Yours is x.\nUser Memories:\n- likes tea, and rhymed couplets about whatever the documents tell of it\n",
    ],
    ids=["same-documents", "same-first-words", "date", "ids", "memory", "first-letter-and-memory"],
)
@pytest.mark.parametrize("old", ["", "The time is 2026-11-30T20:19:00Z."], ids=["timeless", "another-time"])
def test_another_front_with_something_volatile_in_it_is_another_front(new: str, old: str) -> None:
    """The first request ever of an application: nothing of it can have been cached, so nothing was missed."""
    bench = Bench()
    bench.had(bench.sent(f"{FRONT} {old}", DOCUMENTS))
    bench.pilot = ContextPilot()  # contexts behind another system text are planned by themselves
    watch = bench.sent(new.format("Answer from the documents."), DOCUMENTS)
    assert watch.parting is not None
    assert (watch.parting.kind, watch.parting.volatile) == ("text", False)
    assert bench.cause(watch) == "none"


@pytest.mark.parametrize("kind", ["order", "whitespace"])
def test_the_same_front_otherwise_from_its_first_character_on_is_volatile(kind: str) -> None:
    bench = Bench()
    lines = ["Be brief.", FRONT]
    bench.had(bench.sent("\n".join(lines), DOCUMENTS))
    parting = bench.sent("\n".join(lines[::-1] if kind == "order" else ["", *lines]), DOCUMENTS).parting
    assert parting is not None and (parting.kind, parting.volatile, parting.chars) == (kind, True, 0)


def test_a_front_that_was_sent_before_is_none_however_many_came_between() -> None:
    bench = Bench()
    for minute in (5, 6, 5):
        watch = bench.sent(f"{FRONT}\nCurrent time: 2026-11-30 09:0{minute}", DOCUMENTS)
        parting = watch.parting
        bench.had(watch)
    assert parting is None


def test_a_clock_that_has_nothing_to_do_with_where_the_hit_ended() -> None:
    """The time stands behind the place where the cached prefix ends: something else has gone."""
    bench = Bench()
    tokens = bench.had(bench.sent(f"{FRONT}\nCurrent time: 2026-11-30 09:05", DOCUMENTS))
    bench.desk.batch(PagesRemoved(tuple(names(tokens, "NoneNone")[1:])))
    watch = bench.sent(f"{FRONT}\nCurrent time: 2026-11-30 09:06", DOCUMENTS)
    assert bench.cause(watch) == "evicted"


def test_fronts_are_bounded() -> None:
    bench, fronts = Bench(), Fronts(2)
    for number in range(40):
        watch = bench.sent(f"{FRONT} Number {number} of them.", DOCUMENTS)
        assert watch.front is not None
        fronts.add(number % 5, watch.front)
        fronts.add("always", watch.front)
    assert len(fronts) <= 16
