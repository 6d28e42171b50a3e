"""The picture of a cache, by hand-made events: ranks, restarts, adapters and salts, late events, evicted requests."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from prefixpilot import ContextPilot, Plan, Request
from prefixpilot.cache_events import (
    CacheCleared,
    CacheEvent,
    EventBatch,
    PageHash,
    PagesRemoved,
    PagesStored,
    RequestsEvicted,
)
from prefixpilot.core import RequestId
from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.attaching import PATIENCE
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.view import DEFAULT_PAGE, CacheView
from prefixpilot.proxy.cache.watch import Facts, Prediction, Watch, bounded, facts_of, with_expected
from prefixpilot.proxy.control.controller import Route

SIZE = 4
NO_FACTS = Facts()


class Told:
    """An index that notes what it is told."""

    def __init__(self) -> None:
        self.shortened: list[tuple[str, int]] = []
        self.evicted: list[str] = []
        self.bounds: list[int | None] = []

    def shorten(self, request_id: RequestId, blocks: int) -> None:
        self.shortened.append((request_id, blocks))

    def evict(self, request_ids: Iterable[str]) -> None:
        self.evicted += request_ids

    def evict_all(self) -> None:
        self.evicted.append("all")

    def resize(self, cache_tokens: int | None) -> None:
        self.bounds.append(cache_tokens)


class Desk:
    """A view, and an engine that numbers its batches."""

    def __init__(self, model: OwnModel | None = None, *, models: bool = False) -> None:
        self.index = Told()
        self.view = CacheView(self.index, model, Knowledge(), models=models)
        self.sequence = dict[int, int]()

    def batch(self, *events: CacheEvent, rank: int = 0, sequence: int | None = None) -> int:
        number = self.sequence.get(rank, -1) + 1 if sequence is None else sequence
        self.sequence[rank] = number
        return self.view.apply(EventBatch("tcp://e", rank, number, events))

    def sent(
        self, tokens: Sequence[int], plans: tuple[Plan, ...] = (), facts: Facts = NO_FACTS, known: bool = True
    ) -> Watch:
        """A request goes out; its tokens come later, but before anything else happens."""
        watch = Watch(RequestId("r"), Route("t", "chat", ""), None, plans, True, self.view.marks, facts=facts)
        if known:
            watch.prompt = EnginePrompt(array("I", tokens), tuple(PIECES.get(t, b"?") for t in tokens))
            watch.prediction = self.view.predict(watch)
        return watch

    def predicted(self, tokens: Sequence[int], facts: Facts = NO_FACTS) -> int | None:
        prediction = self.sent(tokens, facts=facts).prediction
        return None if prediction is None else prediction.tokens

    def answered(self, watch: Watch, tokens: int, cached: int | None) -> dict[str, object]:
        watch.prompt_tokens, watch.cached_tokens = tokens, cached
        return dict(self.view.settle(watch).shown())


PIECES: dict[int, bytes] = {}


def names(tokens: Sequence[int], salt: str = "") -> list[PageHash]:
    """A page is called after all tokens up to its end."""
    return [PageHash(f"{salt}{list(tokens[:end])}".encode()) for end in range(SIZE, len(tokens) + 1, SIZE)]


def stored(tokens: Sequence[int], have: int = 0, *, salt: str | None = None, adapter: str | None = None) -> PagesStored:
    """All full pages of a prompt but the first ``have``."""
    pages = names(tokens, f"{salt}{adapter}")
    extra = () if salt is None else tuple((salt,) if page == 0 else None for page in range(have, len(pages)))
    told = tuple(tokens[have * SIZE : len(pages) * SIZE])
    parent = pages[have - 1] if have else None
    return PagesStored(tuple(pages[have:]), parent, told, SIZE, adapter=adapter, extra_keys=extra)


def removed(tokens: Sequence[int], *places: int) -> PagesRemoved:
    pages = names(tokens, "NoneNone")
    return PagesRemoved(tuple(pages[place] for place in places))


TOKENS = list(range(100, 114))  # three full pages and two tokens


def test_nothing_is_predicted_before_anything_is_known() -> None:
    assert Desk().predicted(TOKENS) is None


def test_of_an_engine_that_is_known_to_hold_nothing_nothing_is_predicted_by_events() -> None:
    """It was followed from its start, and has told of no page yet: whichever comes first, tokens or events."""
    desk = Desk()
    desk.view.note(SourceStatus("tcp://e", 0, Continuity.WHOLE, -1, 0, 0, 0, 0, 0, 0, 0, ""))
    watch = desk.sent(TOKENS)
    assert watch.prediction == Prediction(0, "events", DEFAULT_PAGE, usable=0)
    desk.view.sized(SIZE, None, bound=None, anew=False)
    assert desk.sent(TOKENS).prediction == Prediction(0, "events", SIZE, usable=12)
    watch.prompt_tokens, watch.cached_tokens = len(TOKENS), 0
    assert desk.view.awaits(watch) == tuple(TOKENS[8:12])
    assert not desk.view.look(watch)
    desk.batch(stored(TOKENS))
    assert desk.view.came() == {tuple(TOKENS[8:12])} and desk.view.look(watch)
    assert desk.answered(watch, len(TOKENS), 0)["verdict"] == "exact"
    blind = desk.sent(TOKENS)
    assert blind.prediction is not None and blind.prediction.tokens == 12


def test_a_prediction_is_as_of_when_the_request_went_out() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS[:8]))
    early = desk.sent(TOKENS, known=False)
    desk.batch(removed(TOKENS, 1), stored([*TOKENS[:4], 1, 2, 3, 4], 1))
    early.prompt = EnginePrompt(array("I", TOKENS))
    prediction = desk.view.predict(early)
    assert prediction is not None and prediction.tokens == 8
    assert desk.predicted(TOKENS) == 4
    assert desk.predicted([*TOKENS[:4], 1, 2, 3, 4, 9]) == 8


def test_the_last_token_is_always_computed() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS[:8]))
    assert desk.predicted(TOKENS[:8]) == 4


def test_a_salt_and_an_adapter_are_caches_of_their_own() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS, salt="s"), stored(TOKENS[:8], adapter="lora"))
    assert desk.predicted(TOKENS) == 0
    assert desk.predicted(TOKENS, Facts("base", "s")) == 12
    assert desk.predicted(TOKENS, Facts("lora")) == 8
    assert desk.predicted(TOKENS, Facts("lora", "s")) == 0


def test_facts_of_bodies() -> None:
    assert facts_of(b'{"model": "m", "cache_salt": "s"}') == Facts("m", "s")
    assert facts_of(b'{"model": 1, "cache_salt": ""}') == Facts("", None)
    for data in (b"", b"[]", b"\xff", b"[" * 100_000):
        assert facts_of(data) == Facts()


def test_the_best_of_several_ranks_is_predicted() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS[:4]), rank=0)
    desk.batch(stored(TOKENS[:8]), rank=1)
    assert desk.predicted(TOKENS) == 8


def test_an_engine_that_begins_anew_holds_nothing() -> None:
    desk = Desk()
    for _ in range(3):
        desk.batch(stored(TOKENS))
    assert desk.predicted(TOKENS) == 12
    desk.batch(CacheCleared(), stored(TOKENS[:4]), sequence=0)
    assert desk.predicted(TOKENS) == 4
    desk.batch(removed(TOKENS, 0))
    assert desk.predicted(TOKENS) == 0


# -- contexts


def planned(count: int = 3, name: str = "r1") -> tuple[Plan, list[int]]:
    """A plan of so many blocks, and its prompt: a token for each half of a block's text, head and question around."""
    plan = ContextPilot().optimize(Request.from_texts(name, [f"block {name} {n} has this text" for n in range(count)]))
    tokens = [900, 901]
    PIECES.update({900: b"<head>", 901: b"\n", 902: b"\n\nquestion", 903: b"?", 904: b"!"})
    for place, block in enumerate(plan.blocks):
        rendered = f"[{block.label}]\n{block.block.text}".encode()
        for half, part in enumerate((rendered[:5], rendered[5:9], rendered[9:12], rendered[12:])):
            token = 1000 + 4 * place + half + 100 * sum(name.encode())
            PIECES[token] = part + (b"\n\n" if half == 3 else b"")
            tokens.append(token)
    return plan, [*tokens, 902, 903, 904]


def test_a_removed_page_shortens_the_context_to_the_blocks_that_are_left() -> None:
    desk = Desk()
    plan, tokens = planned()  # 2 + 12 + 3 tokens: blocks at 2-6, 6-10, 10-14; four pages
    watch = desk.sent(tokens, (plan,))
    desk.batch(stored(tokens))
    assert desk.answered(watch, len(tokens), 0)["verdict"] is None
    assert desk.view.sizes().contexts == 1 and desk.index.shortened == []
    assert desk.batch(removed(tokens, 3)) == 0  # a page of the question, and half of the last block is left
    assert desk.batch(removed(tokens, 2)) == 1
    assert desk.index.shortened == [("r1", 2)]
    desk.batch(removed(tokens, 0))
    assert desk.index.shortened[-1] == ("r1", 0)
    assert desk.view.sizes().contexts == 0


def test_a_cleared_cache_leaves_no_context() -> None:
    desk = Desk()
    for name in ("a", "b"):
        plan, tokens = planned(name=name)
        watch = desk.sent(tokens, (plan,))
        desk.batch(stored(tokens))
        desk.answered(watch, len(tokens), 0)
    desk.batch(CacheCleared())
    assert sorted(desk.index.shortened) == [("a", 0), ("b", 0)]


def test_a_context_waits_for_the_very_first_events() -> None:
    desk = Desk()
    plan, tokens = planned()
    desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    desk.batch(stored(tokens))
    desk.answered(desk.sent(TOKENS), len(TOKENS), 0)
    assert desk.view.sizes().contexts == 1
    desk.batch(removed(tokens, 0))
    assert desk.index.shortened == [("r1", 0)]


def test_a_cleared_cache_leaves_no_context_that_was_answered_before_any_event() -> None:
    desk = Desk()
    plan, tokens = planned()
    desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    desk.batch(stored(tokens))
    desk.batch(CacheCleared())
    assert desk.index.shortened == [("r1", 0)]


def test_without_events_nothing_is_kept_for_long() -> None:
    desk = Desk()
    for number in range(3 * PATIENCE):
        plan, tokens = planned(name=f"r{number}")
        desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    assert len(desk.view._attaching._pending) <= PATIENCE + 1
    assert desk.index.shortened == []


def test_a_context_waits_for_its_own_events_but_not_for_ever() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    plan, tokens = planned()
    desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    assert desk.view.sizes().contexts == 0 and desk.index.shortened == []
    desk.batch(stored(tokens))
    desk.answered(desk.sent(TOKENS), len(TOKENS), 12)
    assert desk.view.sizes().contexts == 1 and desk.index.shortened == []

    plan, tokens = planned(name="late")
    desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    for _ in range(PATIENCE):
        assert desk.index.shortened == []
        desk.answered(desk.sent(TOKENS), len(TOKENS), 12)
    assert desk.index.shortened == [("late", 0)]


def test_a_context_that_waits_while_the_cache_is_cleared_is_gone() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    (plan, tokens), (kept, others) = planned(), planned(name="kept")
    desk.answered(desk.sent(tokens, (plan,)), len(tokens), 0)
    desk.answered(desk.sent(others, (kept,)), len(others), 0)
    desk.batch(CacheCleared(), stored(others))
    assert desk.index.shortened == [("r1", 0)]
    assert desk.view.sizes().contexts == 1


def test_later_turns_and_requests_without_plans_attach_nothing() -> None:
    desk = Desk()
    plan, tokens = planned()
    desk.batch(stored(tokens))
    desk.answered(desk.sent(tokens, (replace(plan, turn=1, opener=plan.request_id),)), len(tokens), 0)
    desk.answered(desk.sent(tokens), len(tokens), 0)
    assert desk.view.sizes().contexts == 0


def test_without_tokens_the_pages_are_found_by_what_was_stored_since() -> None:
    desk = Desk()
    plan, tokens = planned()
    desk.batch(stored(TOKENS))
    watch = desk.sent(tokens, (plan,), known=False)
    desk.batch(stored(tokens[:8]))
    desk.batch(stored(tokens, 2))
    desk.answered(watch, len(tokens), 0)
    assert desk.view.sizes().contexts == 1
    desk.batch(removed(tokens, 0))
    assert desk.index.shortened == [("r1", 0)]


def test_two_prompts_of_one_length_are_not_guessed_between() -> None:
    desk = Desk()
    (plan, tokens), (_, other) = planned(), planned(name="r2")
    watch = desk.sent(tokens, (plan,), known=False)
    desk.batch(stored(tokens))
    desk.batch(stored(other))
    desk.answered(watch, len(tokens), 0)
    assert desk.view.sizes().contexts == 0


def test_evicted_requests_are_told_to_the_index_and_let_go() -> None:
    desk = Desk()
    plan, tokens = planned()
    watch = desk.sent(tokens, (plan,))
    desk.batch(stored(tokens))
    desk.answered(watch, len(tokens), 0)
    desk.batch(RequestsEvicted((RequestId("chatcmpl-r1-0a1b2c3d"),)))
    assert desk.index.evicted == ["chatcmpl-r1-0a1b2c3d"]
    assert desk.view.sizes().contexts == 0
    desk.batch(removed(tokens, 0))
    assert desk.index.shortened == []


def test_an_empty_index_is_shortened_no_more() -> None:
    desk = Desk()
    plan, tokens = planned()
    watch = desk.sent(tokens, (plan,))
    desk.batch(stored(tokens))
    desk.answered(watch, len(tokens), 0)
    desk.view.forget_contexts()
    assert desk.batch(removed(tokens, 0)) == 0
    assert desk.view.sizes().pages == 3


# -- findings


def test_tokens_of_another_count_than_the_engine_are_not_believed() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    watch = desk.sent(TOKENS)
    found = desk.answered(watch, len(TOKENS) + 3, 0)
    assert (found["predicted"], found["verdict"]) == (None, None)
    assert watch.prompt is None


@pytest.mark.parametrize(("cached", "verdict"), [(12, "exact"), (8, "within_page"), (0, "off"), (None, None)])
def test_verdicts(cached: int | None, verdict: str | None) -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    found = desk.answered(desk.sent(TOKENS), len(TOKENS), cached)
    assert (found["predicted"], found["reported"], found["basis"], found["verdict"]) == (12, cached, "events", verdict)


def test_the_own_model_predicts_where_no_events_are_and_is_corrected() -> None:
    desk = Desk(OwnModel(SIZE, 400))
    assert desk.predicted(TOKENS) == 0
    desk.answered(desk.sent(TOKENS), len(TOKENS), 0)
    assert desk.predicted(TOKENS) == 12
    found = desk.answered(desk.sent(TOKENS), len(TOKENS), 4)
    assert (found["basis"], found["verdict"], found["state"]) == ("model", "off", "UNKNOWN")
    desk.answered(desk.sent(TOKENS), len(TOKENS), None)  # an engine that does not say teaches nothing
    assert desk.predicted(TOKENS) == 12
    assert desk.predicted(TOKENS, Facts("", "s")) == 0
    assert desk.predicted(TOKENS, Facts("other")) == 0


def test_doubt_goes_with_hits_that_come_true() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    desk.view.note(SourceStatus("tcp://e", 0, Continuity.BROKEN, 0, 1, 0, 1, 1, 0, 0, 0, "lost"))
    desk.batch(stored([1, 2, 3, 4]), sequence=5)
    assert desk.view.state.name == "DEGRADED"
    for _ in range(150):
        desk.answered(desk.sent(TOKENS), len(TOKENS), 12)
    assert desk.view.state.name == "EXACT"


def test_an_engine_that_tells_its_size_gets_a_model_and_the_index_a_bound() -> None:
    desk = Desk(models=True)
    assert desk.predicted(TOKENS) is None
    desk.view.sized(SIZE, 400, bound=800, anew=False)
    assert desk.predicted(TOKENS) == 0
    desk.answered(desk.sent(TOKENS), len(TOKENS), 0)
    desk.view.sized(SIZE, 400, bound=800, anew=False)
    assert desk.predicted(TOKENS) == 12
    assert (desk.index.bounds, desk.index.evicted) == ([800], [])
    desk.view.sized(SIZE, 400, bound=800, anew=True)
    assert desk.predicted(TOKENS) == 0
    assert desk.index.evicted == ["all"]


def began_anew(desk: Desk, rank: int = 0) -> None:
    """It is known before the new engine has published anything."""
    desk.batch(CacheCleared(), rank=rank, sequence=-1)


def test_a_new_engine_holds_nothing_before_it_has_told_anything() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    early = desk.sent(TOKENS)
    began_anew(desk)
    assert desk.view.sizes().pages == 0 and desk.index.evicted == ["all"]
    assert desk.predicted(TOKENS) == 0 and desk.view.state.name == "EXACT"
    late = desk.sent(TOKENS)
    desk.batch(CacheCleared(), stored(TOKENS), sequence=0)
    assert desk.answered(early, len(TOKENS), 0)["cause"] == "restarted"
    assert desk.answered(late, len(TOKENS), 0)["cause"] == "none"
    assert desk.predicted(TOKENS) == 12
    began_anew(desk)
    began_anew(desk)
    desk.batch(CacheCleared(), stored(TOKENS[:4]), sequence=0)
    assert desk.predicted(TOKENS) == 4


def test_a_rank_that_begins_anew_empties_its_own_cache_only() -> None:
    desk = Desk()
    for rank in (0, 1):
        desk.batch(stored(TOKENS), rank=rank)
    began_anew(desk, 0)
    assert desk.view.sizes().pages == 3 and desk.index.evicted == []
    assert desk.predicted(TOKENS) == 12


def test_a_count_of_nothing_degrades_the_state_until_what_was_held_before_is_hit() -> None:
    desk, others = Desk(), [9, 8, 7, 6, 5, 4, 3, 2, 1]
    desk.batch(stored(TOKENS), stored(others))
    assert desk.answered(desk.sent(TOKENS), len(TOKENS), 0)["state"] == "EXACT"
    assert desk.view.state.name == "DEGRADED" and "begun anew" in desk.view.why()
    desk.answered(desk.sent(TOKENS), len(TOKENS), 12)  # computed since: that proves nothing
    assert desk.view.state.name == "DEGRADED"
    desk.answered(desk.sent(others), len(others), 8)
    assert (desk.view.state.name, desk.view.why()) == ("EXACT", "")


def test_the_index_is_bounded_only_while_removals_are_not_told_for_sure() -> None:
    desk = Desk()
    desk.view.sized(SIZE, 400, bound=400, anew=False)
    desk.batch(stored(TOKENS))
    assert desk.view.state.name == "EXACT"
    desk.view.note(SourceStatus("tcp://e", 0, Continuity.BROKEN, 0, 1, 0, 1, 1, 0, 0, 0, "lost"))
    desk.batch(CacheCleared())
    desk.view.note(SourceStatus("tcp://e", 0, Continuity.WHOLE, 1, 2, 0, 1, 1, 0, 0, 0, ""))
    assert desk.index.bounds == [400, None, 400, None]
    desk.view.sized(SIZE, 400, bound=400, anew=True)
    assert desk.index.evicted == []  # its events tell


@pytest.mark.parametrize(
    ("report", "usable", "told"),
    [
        ({"predicted_cached_tokens": 90, "mode": "on"}, 64, {"predicted_cached_tokens": 64, "mode": "on"}),
        ({"predicted_cached_tokens": 40}, 64, {"predicted_cached_tokens": 40}),
        ({"predicted_cached_tokens": 90}, None, {"predicted_cached_tokens": 90}),
        ({"predicted_cached_tokens": None}, 64, {"predicted_cached_tokens": None}),
        ({}, 64, {}),
    ],
)
def test_what_a_plan_counts_on_is_bounded_by_what_can_be_cached(
    report: dict[str, object], usable: int | None, told: dict[str, object]
) -> None:
    assert bounded(report, usable) == told


def test_a_header_is_bounded_too() -> None:
    header = b'{"predicted_cached_tokens":90}'
    assert with_expected(header, None) == header
    found = json.loads(with_expected(header, Prediction(48, "events", 16, usable=64)))
    assert (found["predicted_cached_tokens"], found["expected"]["cached_tokens"]) == (64, 48)
