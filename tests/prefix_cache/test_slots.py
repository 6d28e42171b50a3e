"""llama.cpp's slots and store: what a request reuses, what it takes away, and where it should go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixpilot.errors import ConfigError, InvalidInputError
from prefixpilot.prefix_cache.slots import LEAST_GAIN, SlotCache, common_prefix

A = b"a" * 600
B = b"b" * 600
C = b"c" * 600


def run(cache: SlotCache, prompt: bytes, slot: int, worth: float = 0.0) -> int:
    """One request, from its beginning to its end. Returns what was cached."""
    cached = cache.place(prompt, slot, worth)
    cache.release(slot)
    return cached


def test_an_empty_slot_reuses_nothing_and_the_store_is_not_asked() -> None:
    cache = SlotCache(2)
    run(cache, A, 0)
    run(cache, B, 0)  # A goes to the store
    assert run(cache, A, 1) == 0


def test_a_prompt_that_went_to_the_store_comes_back_to_a_slot_that_held_another_one() -> None:
    cache = SlotCache(1)
    run(cache, A, 0)
    assert run(cache, B, 0) == 0
    assert run(cache, A, 0) == 600


def test_a_stored_prompt_is_used_up_by_one_that_takes_a_part_of_it() -> None:
    cache = SlotCache(1)
    for prompt in (A + B, C):
        run(cache, prompt, 0)
    assert run(cache, A + C, 0) == 600
    assert run(cache, C, 0) == 600
    assert run(cache, A + B, 0) == 600  # the second half is gone


def test_what_an_idle_slot_holds_too_is_not_used_up() -> None:
    cache = SlotCache(2)
    run(cache, A + B, 0)
    run(cache, C, 1)  # slot 0 is copied to the store
    assert run(cache, A + C, 1) == 600
    assert run(cache, A + B, 0) == 1200


def named(cache: SlotCache, name: str, prompt: bytes, slot: int = 0) -> tuple[str, ...]:
    """One request with a name. Returns the names that it used up."""
    cache.place(prompt, slot, names=(name,))
    cache.release(slot)
    return cache.used_up


def test_whose_prompts_are_used_up_is_told_once() -> None:
    cache = SlotCache(1)
    assert named(cache, "from the store", A + B) == named(cache, "between", C) == ()
    assert named(cache, "takes it", A + C) == ("from the store",)
    assert named(cache, "keeps most of the slot", A + C[:300] + B) == ("takes it",)
    assert named(cache, "another", b"d" * 600) == ()
    assert named(cache, "the same again", b"d" * 600) == ()


def test_what_is_still_held_is_not_used_up() -> None:
    cache = SlotCache(2)
    assert named(cache, "stays in its slot", A + B, 0) == named(cache, "elsewhere", C, 1) == ()
    assert named(cache, "takes the copy", A + C, 1) == ()
    cache = SlotCache(1)
    named(cache, "goes to the store whole", A + B + C)
    assert cache.place(A[:400] + C, 0) == 400 and cache.used_up == ()


def test_a_prompt_that_is_gone_on_with_whole_is_used_up_with_what_came_of_it() -> None:
    cache = SlotCache(1)
    assert named(cache, "first turn", A) == named(cache, "second turn", A + B) == named(cache, "other", C) == ()
    assert named(cache, "takes a part", A[:400] + C) == ("first turn", "second turn")


def test_what_the_bound_puts_out_is_not_told_of() -> None:
    cache = SlotCache(1, store_bytes=600)
    for name, prompt in (("one", A), ("two", B), ("three", C)):
        assert named(cache, name, prompt) == ()


def test_without_a_store_the_next_prompt_uses_up_the_one_before() -> None:
    cache = SlotCache(1, store_bytes=0)
    assert named(cache, "one", A) == ()
    assert named(cache, "two", B) == ("one",)


def test_the_store_is_not_asked_where_half_of_the_slots_prompt_is_kept() -> None:
    cache = SlotCache(2)
    run(cache, A + B, 0)
    run(cache, A, 1)
    assert run(cache, A + B, 1) == 600


def test_of_a_stored_prompt_a_quarter_has_to_be_kept() -> None:
    for shared, cached in ((b"a" * 100, 0), (b"a" * 150, 150)):
        cache = SlotCache(1)
        run(cache, A, 0)
        run(cache, B, 0)
        assert run(cache, shared + C, 0) == cached


def test_a_conversation_keeps_its_slot_when_others_share_its_document() -> None:
    cache = SlotCache(3)
    conversation = A + b"question" * 100
    run(cache, conversation, 0, worth=0.7)
    run(cache, B, 1)
    assert cache.own_choice(A + C) == 0
    best = cache.best(A + C)
    assert best is not None and (best.slot, best.cached) == (1, 600)
    run(cache, A + C, best.slot)
    assert cache.contents.slots[0].text == conversation
    assert run(cache, conversation + b"answer, and the next question", 0) == len(conversation)


def test_nothing_is_paid_now_for_what_may_come() -> None:
    """An empty slot would leave the conversation where it is, and would compute its first document again."""
    cache = SlotCache(2)
    run(cache, A + B + C, 0, worth=1.0)
    cache.forget_store()
    prompt = A + b"e" * 100
    own, other = (cache.preview(prompt, slot) for slot in (0, 1))
    assert (own.cached, other.cached, own.slot) == (600, 0, cache.own_choice(prompt))
    assert other.gain > own.gain + LEAST_GAIN
    assert cache.best(prompt) == own


def test_little_to_gain_leaves_llamacpps_own_choice() -> None:
    cache = SlotCache(3)
    run(cache, A + b"question", 0, worth=0.7)
    run(cache, B, 1)
    own, other = (cache.preview(A + C, slot) for slot in (0, 1))
    assert own.cached == other.cached and own.gain < other.gain < own.gain + LEAST_GAIN
    best = cache.best(A + C)
    assert best is not None and best.slot == 0


def test_without_worth_the_slot_with_most_in_common_is_as_good() -> None:
    cache = SlotCache(2)
    run(cache, A, 0)
    best = cache.best(A + C)
    assert best is not None and best == (0, 600, 0.0)
    assert best.gain == 600


def test_a_slot_stays_through_which_the_store_can_be_reached() -> None:
    """The conversation is in the store only: what shares its head would use it up, and is better computed."""
    cache = SlotCache(2)
    run(cache, A + B + C, 0, worth=0.9)
    run(cache, b"d" * 600, 0)
    best = cache.best(A + b"e" * 100)
    assert best is not None and best.slot == 1
    run(cache, A + b"e" * 100, 1)
    assert cache.preview(A + B + C, 0).cached == 1800


def test_a_busy_slot_is_not_waited_for() -> None:
    cache = SlotCache(2)
    cache.place(A, 0)
    best = cache.best(A + B)
    assert best is not None and best.slot == 1
    cache.place(B, 1)
    assert cache.best(A) is None and cache.own_choice(A) is None
    with pytest.raises(InvalidInputError, match="busy"):
        cache.place(C, 1)


def test_llamacpp_takes_the_most_similar_slot_and_else_the_one_used_least_lately() -> None:
    cache = SlotCache(3)
    assert cache.own_choice(A) == 2
    run(cache, A, 2)
    run(cache, B, 0)
    assert cache.own_choice(A + b"x") == 2
    assert cache.own_choice(C) == 1
    run(cache, C, 1)
    assert cache.own_choice(b"d" * 600) == 2


def test_what_failed_leaves_an_empty_slot_and_what_is_forgotten_is_not_expected() -> None:
    cache = SlotCache(1)
    cache.place(A, 0)
    cache.release(0, failed=True)
    assert cache.preview(A, 0).cached == 0
    run(cache, A, 0)
    run(cache, B, 0)
    cache.forget_store()
    assert cache.preview(A, 0).cached == 0
    cache.clear_idle()
    assert not cache.contents.store and not cache.contents.slots[0].text


def test_the_store_is_bounded_and_the_oldest_goes_first() -> None:
    cache = SlotCache(1, store_bytes=1300)
    for prompt in (A, B, C, b"d" * 600):
        run(cache, prompt, 0)
    assert [held.text for held in cache.contents.store] == [B, C]
    assert [cache.preview(each, 0).cached for each in (A, B, C)] == [0, 600, 600]


def test_without_a_store_only_slots_count() -> None:
    cache = SlotCache(1, store_bytes=0)
    run(cache, A, 0)
    run(cache, B, 0)
    assert cache.preview(A, 0).cached == 0


@pytest.mark.parametrize("arguments", [(0,), (1, -1)])
def test_bad_settings(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        SlotCache(*arguments)


def test_a_slot_that_is_not_there() -> None:
    with pytest.raises(InvalidInputError, match="use 0 to 1"):
        SlotCache(2).preview(A, 2)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=400))
def test_the_common_prefix(head: bytes, one: bytes, other: bytes) -> None:
    one, other = head * 9 + one, head * 9 + other
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


PROMPTS = st.lists(st.sampled_from([b"a" * 40, b"b" * 40, b"c" * 25, b"d" * 90]), max_size=4).map(b"".join)


class Machine(RuleBasedStateMachine):
    """Requests come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SlotCache(3, 500)
        self.busy: dict[int, bytes] = {}
        self.seen: set[bytes] = set()

    @precondition(lambda self: len(self.busy) < 3)
    @rule(prompt=PROMPTS, worth=st.floats(0, 1), best=st.booleans())
    def begins(self, prompt: bytes, worth: float, best: bool) -> None:
        choice = self.cache.own_choice(prompt)
        before = self.cache.best(prompt, worth)
        assert before is not None and choice is not None
        own = self.cache.preview(prompt, choice, worth)
        others = [self.cache.preview(prompt, slot, worth) for slot in self.cache.idle if slot != choice]
        better = [each for each in others if each.cached >= own.cached and each.gain >= own.gain + LEAST_GAIN]
        assert before == own if not better else (before in better and before.gain == max(each.gain for each in better))
        slot = before.slot if best else choice
        assert slot not in self.busy
        expected = self.cache.preview(prompt, slot, worth)
        assert 0 <= expected.cached <= max((common_prefix(prompt, each) for each in self.seen), default=0)
        assert 0 <= expected.left <= sum(map(len, {*self.seen, prompt}))
        before_it = self.names()
        assert self.cache.place(prompt, slot, worth, (str(len(before_it)),)) == expected.cached
        assert before_it >= set(self.cache.used_up) and not self.names() & set(self.cache.used_up)
        self.busy[slot] = prompt
        self.seen.add(prompt)

    def names(self) -> set[str]:
        return {name for part in self.cache.contents for held in part for name in held.names}

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), failed=st.booleans())
    def ends(self, data: st.DataObject, failed: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.busy)))
        self.cache.release(slot, failed=failed)
        prompt = self.busy.pop(slot)
        assert self.cache.contents.slots[slot].text == (b"" if failed else prompt)

    @rule()
    def is_wrong(self) -> None:
        self.cache.forget_store()

    @rule()
    def is_cleared(self) -> None:
        self.cache.clear_idle()
        assert sorted(held.text for held in self.cache.contents.slots if held.text) == sorted(
            filter(None, self.busy.values())
        )

    @invariant()
    def holds(self) -> None:
        self.cache.check_invariants()
        assert set(self.cache.idle) == {0, 1, 2} - set(self.busy)
        assert all(self.cache.contents.slots[slot].text == prompt for slot, prompt in self.busy.items())


TestMachine = Machine.TestCase
