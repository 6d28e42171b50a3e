"""The kernel over a window says what Python says. Left out on a pure build, where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.core import BlockId
from prefixpilot.tails import POLICIES, Tail, Window, window
from prefixpilot.tails.window import kernels

pytestmark = pytest.mark.skipif(kernels is None, reason="a pure build has no kernels")

blocks: st.SearchStrategy[BlockId] = st.one_of(st.integers(0, 12), st.sampled_from(["a", b"a"]))
contexts = st.lists(blocks, min_size=1, max_size=8, unique=True)


def by_python(policy: str, known: Window, tail: Tail) -> list[BlockId]:
    """What a policy says where there is no kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "kernels", None)
        return POLICIES[policy](known, tail)


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
    known = Window(size)
    for context in sent:
        known.add(context)
    rest = asked[inherited:]
    lengths = st.sampled_from([0, 1, 30, 700, 1 << 50, 1 << 51, 1 << 90])
    tokens = data.draw(st.lists(lengths, min_size=len(rest), max_size=len(rest)))
    tail = Tail(tuple(asked[:inherited]), tuple(rest), tuple(tokens), live)
    for policy in ("co-occurrence", "popularity", "popularity-tokens"):
        assert POLICIES[policy](known, tail) == by_python(policy, known, tail)
    assert known.counts(asked) == [known.holders(block).bit_count() for block in asked]


@given(st.integers(0, 400), st.integers(1, 90))
def test_no_more_than_64_are_picked_of_many(start: int, uses: int) -> None:
    known = Window(256)
    for _ in range(uses):
        known.add(range(start, start + 150))
    tail = Tail((), tuple(range(start + 20, start + 200)), (5,) * 180, 3)
    picked = POLICIES["co-occurrence"](known, tail)
    assert picked == by_python("co-occurrence", known, tail)
    assert len(picked) == (64 if uses >= 18 else len(picked))


def test_what_is_no_window_is_refused() -> None:
    wrong: tuple[tuple[Any, ...], ...] = (([], {}, 64, ()), ({}, {}, 0, ()), ({}, {}, 64, []), ({1: "x"}, {}, 64, (1,)))
    for args in wrong:
        with pytest.raises(TypeError, match="expected"):
            kernels.counts(*args)
    with pytest.raises(OverflowError):
        kernels.counts({1: 1 << 64}, {}, 64, (1,))
    with pytest.raises(TypeError, match="unhashable"):
        kernels.counts({}, {}, 64, ([],))
    for rest, tokens, least in (((1,), (), 2), ([1], (1,), 2), ((1,), (1,), 0)):
        with pytest.raises(TypeError, match="expected"):
            kernels.co_occurrence({}, {}, 64, (), rest, tokens, 2.0, least, 64)
    with pytest.raises(TypeError, match="arguments"):
        kernels.co_occurrence({}, {}, 64)
