"""Answers of earlier prompts, found in later ones: against looking at all of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot.prefix_cache import Segment
from prefixpilot.residency.answers import AnsweredPrompts, PagedPrompt
from prefixpilot.residency.estimated import token_segments

SIZE = 4
prompts = st.lists(st.integers(1, 2), min_size=1, max_size=14).map(tuple)
noted = st.lists(st.tuples(prompts, st.integers(1, 9), st.sampled_from([None, "lora"])), max_size=12)


def paged(tokens: Sequence[int], adapter: str | None = None) -> PagedPrompt:
    return PagedPrompt(tokens, SIZE, (), adapter)


def by_looking_at_all(
    records: dict[tuple[tuple[int, ...], str | None], Segment], tokens: tuple[int, ...], adapter: str | None
) -> list[tuple[int, int, object]]:
    found: list[tuple[int, int, object]] = []
    for start in range(len(tokens) + 1):
        answer = records.get((tokens[:start], adapter))
        if answer is not None and start + answer.tokens < len(tokens) and (not found or start >= found[-1][1]):
            found.append((start, start + answer.tokens, answer.key))
    return found


@settings(max_examples=300)
@given(noted, prompts, st.sampled_from([None, "lora"]), st.integers(1, 6))
def test_the_answers_in_a_prompt(
    records: list[tuple[tuple[int, ...], int, str | None]], tokens: tuple[int, ...], adapter: str | None, most: int
) -> None:
    answered, plain = AnsweredPrompts(most), dict[tuple[tuple[int, ...], str | None], Segment]()
    for number, (prompt, length, selected) in enumerate(records):
        answer = Segment(("answer", number), length)
        answered.note(paged(prompt, selected), answer)
        plain.pop((prompt, selected), None)
        plain[prompt, selected] = answer
        if len(plain) > most:
            del plain[next(iter(plain))]
        answered.check_invariants()
    later = paged(tokens, adapter)
    extents = answered.extents(later)
    assert [extent[:3] for extent in extents] == by_looking_at_all(plain, tokens, adapter)
    segments = later.segments(extents)
    assert sum(segment.tokens for segment in segments) == len(tokens)
    assert [s for s in segments if isinstance(s.key, tuple) and s.key[:1] == ("answer",)] == [
        Segment(name, end - start) for start, end, name in by_looking_at_all(plain, tokens, adapter)
    ]
    for extent in extents:
        answered.forget(extent.place)
    answered.check_invariants()
    assert len(answered) == len(plain) - len(extents)


@given(prompts)
def test_without_answers_the_segments_are_those_of_the_tokens(tokens: tuple[int, ...]) -> None:
    assert paged(tokens).segments() == token_segments(tokens, SIZE)


def test_what_is_met_stays_and_the_rest_goes() -> None:
    answered = AnsweredPrompts(2)
    answered.note(paged((1, 1)), Segment("a", 1))
    answered.note(paged((2, 2)), Segment("b", 1))
    assert [extent.name for extent in answered.extents(paged((1, 1, 9, 9)))] == ["a"]
    answered.note(paged((3, 3)), Segment("c", 1))
    assert answered.extents(paged((2, 2, 9, 9))) == []
    assert [extent.name for extent in answered.extents(paged((1, 1, 9, 9)))] == ["a"]
