"""Blocks that came before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.blocks import KnownBlocks, block_identity, text_digest
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError

blocks = st.tuples(st.sampled_from("ab"), st.none() | st.sampled_from([1, "1", "a"]), st.none() | st.just("T"))


@given(st.lists(blocks, max_size=12))
def test_a_block_is_as_if_made_anew_and_the_same_when_it_comes_again(
    drawn: list[tuple[str, int | str | None, str | None]],
) -> None:
    known = KnownBlocks(1 << 20)
    made: dict[tuple[str, int | str | None, str | None], ContextBlock] = {}
    for text, id, title in drawn:
        block = known.of(text, id, title)
        assert block == ContextBlock(text, id, title) and type(block.id) is type(id)
        assert made.setdefault((text, id, title), block) is block
        known.check_invariants()


def test_what_is_known_of_its_text_comes_with_it() -> None:
    known = KnownBlocks(1 << 20)
    identity, digest = block_identity(known.of("a")), text_digest(known.of("a"))
    assert (identity, digest) == (block_identity(ContextBlock("a")), text_digest(ContextBlock("a")))
    assert known.of("a")._digest is digest and known.of("a")._identity is identity


def test_a_normalised_identity_is_not_taken_for_that_of_the_text() -> None:
    block = ContextBlock("a  b")
    plain = block_identity(block)
    assert block_identity(block, "whitespace") == block_identity(ContextBlock("a b"), "whitespace") != plain
    assert block_identity(block) == plain


def test_what_is_kept_has_a_bound() -> None:
    known = KnownBlocks(20_000)
    for i in range(100):
        known.of(f"{i}" * 50)
        assert known.size <= 20_000
    assert known.size > 8_000


def test_what_is_no_block_is_refused_as_ever() -> None:
    with pytest.raises(InvalidRequestError):
        KnownBlocks(1 << 20).of(1)  # type: ignore[arg-type]
