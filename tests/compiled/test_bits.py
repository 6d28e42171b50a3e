"""The kernel over a window says what Python says. Left out on a pure build, where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.core import BlockId
from prefixpilot.tails import POLICIES, Tail, Window, halves
from prefixpilot.tails.halves import kernels

pytestmark = pytest.mark.skipif(kernels is None, reason="a pure build has no kernels")

blocks: st.SearchStrategy[BlockId] = st.one_of(st.integers(0, 12), st.sampled_from(["a", b"a"]))
contexts = st.lists(blocks, min_size=1, max_size=8, unique=True)


def window_of(size: int, sent: list[list[BlockId]]) -> Window:
    known = Window(size)
    for context in sent:
        known.add(context)
    return known


def by_python(size: int, sent: list[list[BlockId]]) -> Window:
    """What a window is where there is no kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "kernels", None)
        return window_of(size, sent)


@given(
    st.sampled_from([2, 60, 64, 66, 130, 2048]),
    st.lists(contexts, max_size=90),
    contexts,
    st.integers(0, 8),
    st.integers(0, 40),
    st.data(),
)
def test_the_same_choices(
    size: int, sent: list[list[BlockId]], asked: list[BlockId], inherited: int, live: int, data: st.DataObject
) -> None:
    known, other = window_of(size, sent), by_python(size, sent)
    rest = asked[inherited:]
    lengths = st.sampled_from([0, 1, 30, 700, 1 << 50, 1 << 51, 1 << 90])
    tokens = data.draw(st.lists(lengths, min_size=len(rest), max_size=len(rest)))
    tail = Tail(tuple(asked[:inherited]), tuple(rest), tuple(tokens), live)
    for policy in POLICIES.values():
        assert policy(known, tail) == policy(other, tail)
    assert known.counts(asked) == other.counts(asked)
    assert known.holders_of_each(asked) == other.holders_of_each(asked)
    assert known.contexts() == other.contexts()
    assert len(known) == len(other)
    known.check_invariants()


@given(st.integers(0, 400), st.integers(1, 90))
def test_no_more_than_64_are_picked_of_many(start: int, uses: int) -> None:
    sent: list[list[BlockId]] = [list(range(start, start + 150))] * uses
    tail = Tail((), tuple(range(start + 20, start + 200)), (5,) * 180, 3)
    picked = POLICIES["co-occurrence"](window_of(256, sent), tail)
    assert picked == POLICIES["co-occurrence"](by_python(256, sent), tail)
    assert len(picked) == (64 if uses >= 18 else len(picked))
    for count in (64, 65):
        some = Tail((), tail.rest[-count:], tail.tokens[-count:], 3)
        policy = POLICIES["popularity-tokens"]
        assert policy(window_of(256, sent), some) == policy(by_python(256, sent), some)


def test_a_block_that_a_context_repeats_is_counted_once() -> None:
    known = window_of(4, [[1, 1], [1, 2, 1]])
    assert known.counts([1, 2]) == [2, 1]
    assert known.holders(1) == 0b11


def test_what_is_no_window_is_refused() -> None:
    for size in (0, 3, -2, 1 << 25):
        with pytest.raises(ValueError, match="even number"):
            kernels.Halves(size)
    known = kernels.Halves(64)
    unhashable: Any = [[]]
    for ask in (known.counts, known.add):
        with pytest.raises(TypeError, match="unhashable"):
            ask(unhashable)
    with pytest.raises(TypeError, match="unhashable"):
        known.holders([])
    wrong: tuple[Any, ...] = (((1,), ()), ([1], (1,)), ((1,), ("x",)), (([],), (1,)))
    for args in wrong:
        with pytest.raises(TypeError):
            known.most_used(*args)
        with pytest.raises(TypeError):
            known.co_occurrence((), *args, 2.0, 1, 64)
    for prefix, least in (([], 2), ((), 0), (([],), 2)):
        with pytest.raises(TypeError):
            known.co_occurrence(prefix, (1,), (1,), 2.0, least, 64)
    for ask in (known.most_used, known.co_occurrence):
        with pytest.raises(TypeError, match="arguments"):
            ask(1)
    assert known.most_used((), ()) == []
