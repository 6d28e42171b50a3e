"""The kernel that makes the blocks of plans does what Python does. Left out on a pure build, where there is none."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from sys import getrefcount
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.blocks import StoredBlock
from prefixpilot.core import ContextBlock, Plan, PlannedBlock
from prefixpilot.prompts.assemble import kernels

pytestmark = pytest.mark.skipif(kernels is None, reason="a pure build has no kernels")

texts = st.one_of(st.none(), st.sampled_from(["", "a", "see [Doc 1]"]))
stored = st.lists(
    st.builds(
        lambda number, text, title, tokens: StoredBlock(
            number, ContextBlock(text, number, title, tokens), tokens, (0, number)
        ),
        st.integers(0, 6),
        texts,
        texts,
        st.integers(0, 900),
    ),
    max_size=9,
)


@given(stored, st.randoms(use_true_random=False))
def test_the_same_blocks(blocks: list[StoredBlock], chance: Any) -> None:
    order = list(range(len(blocks)))
    chance.shuffle(order)
    labels = tuple(f"Doc {place}" for place in range(len(order) + 1))
    made = kernels.planned(PlannedBlock, blocks, tuple(order), labels)
    expected = tuple(
        PlannedBlock(blocks[at].block_id, blocks[at].block, at, label, None, blocks[at].tokens)
        for at, label in zip(order, labels, strict=False)
    )
    assert made == expected
    assert [type(block) for block in made] == [PlannedBlock] * len(order)
    assert kernels.texts(blocks, "text", "title") == [t for s in blocks for t in (s.block.text, s.block.title) if t]


@given(stored, st.integers(0, 30))
def test_the_same_columns(blocks: list[StoredBlock], annotated: int) -> None:
    planned = tuple(
        PlannedBlock(s.block_id, s.block, place, "x", "above" if place == annotated else None, s.tokens)
        for place, s in enumerate(blocks)
    )
    distinct = len({s.block_id for s in blocks}) == len(blocks)
    expected = (
        tuple(b.block_id for b in planned),
        tuple(b.tokens for b in planned),
        tuple(b.position for b in planned),
    )
    assert kernels.columns(planned) == (expected if distinct and annotated >= len(blocks) else None)


def test_what_is_no_such_record_is_refused() -> None:
    block = StoredBlock(1, ContextBlock(id=1), 1, (0, 1))
    for stored_blocks, order in (([block], (1,)), ([block], (-1,)), ([()], (0,)), ([7], (0,))):
        with pytest.raises(ValueError, match="record"):
            kernels.planned(PlannedBlock, stored_blocks, order, ("x",))
    for args in ((list, [block], (0,), ("x",)), (PlannedBlock, [block], (0,), ()), (7, [block], (0,), ("x",))):
        with pytest.raises(TypeError, match="expected"):
            kernels.planned(*args)
    with pytest.raises(TypeError, match="arguments"):
        kernels.texts([block])
    wrong: Any
    for wrong in ([], 7):
        with pytest.raises(TypeError, match="tuple"):
            kernels.columns(wrong)
    with pytest.raises(ValueError, match="record"):
        kernels.columns((1,))


@given(stored)
def test_the_same_lengths(blocks: list[StoredBlock]) -> None:
    made = kernels.lengths(blocks)
    assert list(made.items()) == list({s.block_id: s.tokens for s in blocks}.items())


@given(st.permutations(range(8)), st.integers(0, 7))
def test_the_same_names(order: list[int], most: int) -> None:
    labels = tuple(f"Doc {place + 1}" for place in range(len(order)))
    expected = [labels[order.index(rank)] for rank in range(most)]
    found = kernels.named(tuple(order), labels, most)
    assert found == (None if expected == list(labels[:most]) else expected)


def test_what_is_no_permutation_is_refused() -> None:
    for order, most in (((1, 2), 1), ((0, 0), 2), ((-1, 5), 1)):
        with pytest.raises(ValueError, match="permutation"):
            kernels.named(order, ("a", "b"), most)
    wrong: tuple[tuple[Any, ...], ...] = (((0,), (), 1), ([0], ("a",), 1), ((0,), ("a",), 2), ((0,), ("a",), -1))
    for args in (*wrong, (("x",), ("a",), 1), ((0,), ("a",), "x"), (1,)):
        with pytest.raises(TypeError):
            kernels.named(*args)


class Lent:
    """Text and title by other ways than those of a class with slots."""

    title = ""

    def __init__(self, text: str) -> None:
        self.words = text

    @property
    def text(self) -> str:
        return self.words


def test_texts_are_asked_for_where_they_do_not_stand_in_slots() -> None:
    block = ContextBlock("a", 1, "b")
    records = [(1, block, 1, ()), (2, Lent("c"), 1, ()), (3, Lent(""), 1, ()), (4, block, 1, ())]
    assert kernels.texts(records, "text", "title") == ["a", "b", "c", "a", "b"]
    with pytest.raises(AttributeError):
        kernels.texts(records, "text", "nowhere")


def test_what_a_plan_holds_is_freed_with_it() -> None:
    marker: Any = Lent("x")
    names = tuple(field.name for field in fields(Plan))
    before = getrefcount(marker)
    made = kernels.made(Plan, (*names, "gain"), ("r", "t", "s", *(marker,) * (len(names) - 2)))
    assert getrefcount(marker) == before + len(names) - 3
    assert made.gain is marker
    del made
    assert getrefcount(marker) == before


def test_a_plan_is_made_as_its_constructor_makes_it() -> None:
    values = ("r", "t", "s", (), "text", 3, None, 1, "o", DEFAULT_TEMPLATES, 7, -2, 5)
    names = tuple(field.name for field in fields(Plan))
    made = kernels.made(Plan, names, values)
    assert made == Plan(*values)  # type: ignore[arg-type]
    assert hash(made) == hash(Plan(*values))  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        made.turn = 2
    with pytest.raises(TypeError, match="expected"):
        kernels.made(Plan, names, values[1:])
    with pytest.raises(AttributeError):
        kernels.made(Plan, ("nowhere",), (1,))
