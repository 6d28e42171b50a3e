"""Formats without marks: nothing moves until other requests prove it, and then whole documents do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import NoEdges
from prefixpilot.formats.check import check_recogniser, check_regions
from prefixpilot.formats.edges import EdgeStore
from prefixpilot.formats.weak import DIFY, PROMPT_BUILDER, RAG_PROMPT, STUFF, WEAK, WeakRecogniser, learn
from prefixpilot.pieces import apply, fill, permuted

FIRST = "Bowls are thrown from eight hundred grams of clay, plates from a kilo and a half, all by eye after a while."
PARTED = (
    "Glaze is mixed on the first day of a month and left for a week.\n\n"
    "Whoever needs it sooner takes the jar that is marked old, and writes down how much was taken from it."
)
THIRD = "The kiln is opened at ninety degrees and not before, whatever the customers say about the market of the day."
FOURTH = "Sales on the gate are paid in cash. Sales at the market are written down and paid at the end of the week."
UNPARTED = PARTED.replace("\n\n", " ")
TEXTS = (FIRST, PARTED, THIRD, FOURTH)


def _rag_prompt(texts: Sequence[str]) -> str:
    return f"Help with these notes.\nQuestion: Whose {len(texts[0])}? \nContext: {chr(10) * 2}".rstrip() + (
        " " + "\n\n".join(texts) + " \nAnswer:"
    )


def _prompt_builder(texts: Sequence[str]) -> str:
    joined = "".join(f"\n  {text}" for text in texts)
    return f"Use the papers.\n  Documents:{joined}\n  \n  Question: Whose kiln?\n\n  Answer:"


def _dify(texts: Sequence[str]) -> str:
    joined = "\n".join(texts)
    return f"Use what is between the tags.\n\n<context>\n{joined}\n</context>\n\nBe brief."


def _stuff(texts: Sequence[str]) -> str:
    return "\n\n".join(["You answer for the pottery.", *texts])


class Case(NamedTuple):
    """A format, and how it is written."""

    recogniser: WeakRecogniser
    role: Role
    write: Callable[[Sequence[str]], str]
    texts: tuple[str, ...]


CASES = {
    "langchain_hub_rag_prompt": Case(WeakRecogniser(RAG_PROMPT), "user", _rag_prompt, TEXTS),
    "haystack_prompt_builder": Case(WeakRecogniser(PROMPT_BUILDER), "user", _prompt_builder, TEXTS),
    "dify": Case(WeakRecogniser(DIFY), "system", _dify, (FIRST, UNPARTED, THIRD, FOURTH)),
    "langchain_stuff": Case(WeakRecogniser(STUFF), "system", _stuff, TEXTS),
}


def segment(text: str, role: Role, sealed: bool = False) -> Segment:
    return Segment(("messages", 0, "content"), text, role, 0, sealed)


def store_of(case: Case, besides: Sequence[str]) -> EdgeStore:
    """What was learnt from all orders but one."""
    store = EdgeStore()
    for texts in itertools.permutations(case.texts):
        if texts != tuple(besides):
            learn([segment(case.write(texts), case.role)], WEAK, store)
    return store


@pytest.mark.parametrize("name", CASES)
def test_whole_documents_move_once_they_are_proved(name: str) -> None:
    case = CASES[name]
    text = case.write(case.texts)
    assert not case.recogniser.find(segment(text, case.role), NoEdges())
    assert not case.recogniser.find(segment(text, case.role), EdgeStore())
    store = store_of(case, besides=case.texts)
    (region,) = case.recogniser.find(segment(text, case.role), store)
    assert [unit.text for unit in region.units] == list(case.texts)
    assert (region.format, region.movable, region.repeats, region.literal) == (name, True, "safe", "text")
    check_recogniser(case.recogniser, text, case.texts, case.role, store)
    order = [2, 0, 1, *range(3, len(case.texts))]
    moved = apply(fill(len(text), permuted([unit.span for unit in region.units], order)), text)
    if name != "langchain_hub_rag_prompt":  # its question depends on the first text here
        assert moved == case.write([case.texts[i] for i in order])


@pytest.mark.parametrize("name", CASES)
def test_no_other_role_and_nothing_sealed(name: str) -> None:
    case = CASES[name]
    text, store = case.write(case.texts), store_of(case, besides=case.texts)
    assert not case.recogniser.find(segment(text, "tool"), store)
    assert not case.recogniser.find(segment(text, "assistant", sealed=True), store)
    size = len(store)
    learn([segment(text, "tool"), segment(text, "assistant", sealed=True)], WEAK, store)
    assert len(store) == size


@pytest.mark.parametrize(
    "text",
    [
        "Question: a\nContext: b\n\nc",
        "Question: a\nContext: b\n\nQuestion: a\nContext: b\n\nc\nAnswer:",
        "Question: a\nContext: \nAnswer:",
        "Documents:\n b\n c",
        "Documents:\n b\n c\nQuestion: d\nQuestion: e",
        "Documents: b\n c\nQuestion: d",
        "Question: d\nDocuments:\n b\n c",
    ],
)
def test_where_the_frame_is_missing_or_doubtful_nothing_is_learnt(text: str) -> None:
    store = EdgeStore()
    learn([segment(text, "user")], WEAK, store)
    assert len(store) == 0


@pytest.mark.parametrize(
    "text",
    [
        "<context>\nb\nc",
        "<context>\nb\n</context>\n<context>\nb\n</context>",
        "</context>\n<context>\nb\nc",
        "<context>\n</context>",
        "<context>\n<source id='1'>b\nc</source>\n</context>",
    ],
)
def test_dify_wants_one_pair_of_tags(text: str) -> None:
    assert DIFY.stretch(text) is None


PARTS = ["Question: ", "Context: ", "\nAnswer:", "Documents:\n", "\n\n", "\n", " ", "x" * 90, "y"]
SLOW = {
    "question": "Question: \nContext: " * 10_000,
    "documents": "Documents:" + "\n" * 200_000,
    "space": "\n \t" * 70_000,
    "context": "<context>\n" * 20_000,
    "paragraphs": "\n\n" * 90_000,
}


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from(["Question: ", "Context: ", "\nAnswer:", "Documents:\n", "\n\n", "\n", " ", "x" * 90, "y"])
    )
)
def test_no_text_raises(parts: list[str]) -> None:
    text, store = "".join(parts), EdgeStore()
    for role in ("user", "system"):
        at = segment(text, "user" if role == "user" else "system")
        learn([at], WEAK, store)
        for recogniser in WEAK:
            check_regions(text, recogniser.find(at, store))


@pytest.mark.parametrize(
    "text",
    [
        "Question: \nContext: " * 10_000,
        "Documents:" + "\n" * 200_000,
        "\n \t" * 70_000,
        "<context>\n" * 20_000,
        "\n\n" * 90_000,
    ],
    ids=["question", "documents", "space", "context", "paragraphs"],
)
def test_long_texts_made_to_be_slow(text: str) -> None:
    """At 200,000 characters anything but a linear pass takes minutes."""
    for recogniser in WEAK:
        for at in (segment(text, "user"), segment(text, "system")):
            recogniser.learn(at, store := EdgeStore())
            check_regions(text, recogniser.find(at, store))
