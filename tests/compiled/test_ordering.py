"""The kernel that orders the blocks of one request does what Python does. Left out where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import ordering
from prefixpilot.core import BlockId
from prefixpilot.ordering import kernels, order_blocks

pytestmark = pytest.mark.skipif(kernels is None, reason="a pure build has no kernels")

blocks: st.SearchStrategy[BlockId] = st.one_of(st.integers(0, 200), st.sampled_from(["1", "a", b"1", 1 << 70]))
contexts = st.lists(blocks, max_size=90)


@given(contexts, st.integers(0, 90), st.randoms(use_true_random=False))
def test_the_same_order(given_blocks: list[BlockId], length: int, chance: Any) -> None:
    prefix = list(dict.fromkeys(given_blocks))
    chance.shuffle(prefix)
    prefix = prefix[:length]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "kernels", None)
        expected = order_blocks(given_blocks, prefix)
    assert order_blocks(given_blocks, prefix) == expected


def test_what_is_no_prefix_of_these_blocks_is_refused() -> None:
    for prefix in ((3,), (1, 1)):
        with pytest.raises(KeyError):
            kernels.order((1, 2), prefix)
    wrong: tuple[tuple[Any, ...], ...] = (([1], ()), ((1,), [1]), ((1,), (1, 2)), ((1,),), (([],), ()), ((1,), ([],)))
    for args in wrong:
        with pytest.raises(TypeError):
            kernels.order(*args)
    assert kernels.order((1, 1), (1,)) is None
