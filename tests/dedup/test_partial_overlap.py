"""Chunks, runs and fences: what partial overlap is made of."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.dedup import chunking, runs
from prefixpilot.dedup import fences as fences_module
from prefixpilot.dedup.chunking import MAX_CHARACTERS, MIN_CHARACTERS, chunks, text_digest
from prefixpilot.dedup.fences import clear_of, cuts, fences
from prefixpilot.dedup.runs import ChunkIndex
from prefixpilot.pieces import Span

lines = st.lists(st.text(alphabet="ab .\n", max_size=40), max_size=60).map("\n".join)
anything = st.one_of(
    st.text(max_size=400), lines, st.text(alphabet="ab. ", min_size=20, max_size=60).map(lambda text: text * 90)
)


def prose(seed: int, count: int) -> str:
    """Lines that look like no others."""
    return "".join(
        f"line {seed * 104729 + i * 7919} of {seed} says {(i * i * 31 + seed) % 9973}\n" for i in range(count)
    )


@given(anything)
def test_chunks_joined_are_the_text(text: str) -> None:
    found = chunks(text)
    assert "".join(text[c.start : c.end] for c in found) == text
    assert all(c.digest == text_digest(text[c.start : c.end]) for c in found)
    assert all(c.end - c.start >= MIN_CHARACTERS for c in found[:-1])
    assert all(0 < c.end - c.start < MAX_CHARACTERS + 300 for c in found)


def test_an_insertion_moves_only_the_cuts_near_it() -> None:
    text = prose(1, 400)
    middle = len(prose(1, 200))
    edited = text[:middle] + "one more line\n" + text[middle:]
    before, after = {c.digest for c in chunks(text)}, {c.digest for c in chunks(edited)}
    assert len(before) > 15
    assert len(before - after) <= 3


def test_cuts_stand_behind_lines() -> None:
    text = prose(2, 300)
    assert all(text[c.end - 1] == "\n" for c in chunks(text))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(60, 200), st.integers(200, 2000))
def test_a_run_is_equal_on_both_sides_and_long_enough(before: int, after: int, common: int, at_least: int) -> None:
    shared = prose(3, common)
    first, second = prose(4, before) + shared + prose(5, after), prose(6, after) + shared + prose(7, before)
    index = ChunkIndex()
    index.add(chunks(prose(8, 30)))
    number = index.add(chunks(first))
    at = 0
    for run in index.runs(chunks(second), at_least):
        assert run.start >= at and run.end - run.start >= at_least
        assert run.source == number
        assert second[run.start : run.end] == first[run.source_start : run.source_end]
        at = run.end
    assert at or len(shared) < 2 * MAX_CHARACTERS + at_least


def test_the_longest_of_several_sources_is_taken() -> None:
    head, tail = prose(9, 100), prose(10, 100)
    index = ChunkIndex()
    index.add(chunks(head))
    index.add(chunks(head + tail))
    (run,) = index.runs(chunks(head + tail), 100)
    assert (run.source, run.start, run.end) == (1, 0, len(head + tail))


@given(st.lists(st.sampled_from(["```", "````py", "~~~", "text", "```js", " ```", "``` `"]), max_size=8))
def test_fences_as_a_reader_of_markdown_sees_them(rows: list[str]) -> None:
    text = "\n".join(rows)
    expected: list[bool] = []
    mark = ""
    for line in rows:
        bare = line.strip()
        fence = bare[:1] in ("`", "~") and bare[:3] == bare[:1] * 3
        length = len(bare) - len(bare.lstrip(bare[:1])) if fence else 0
        rest = bare[length:]
        if mark:
            expected.append(True)
            if fence and bare[0] == mark[0] and length >= len(mark) and not rest.strip():
                mark = ""
        elif fence and not (bare[0] == "`" and "`" in rest):
            mark = bare[:length]
            expected.append(True)
        else:
            expected.append(False)
    spans, at, found = fences(text), 0, []
    for line in rows:
        found.append(any(span.start <= at and at + len(line) <= span.end for span in spans))
        at += len(line) + 1
    assert found == expected


def test_clear_of_and_cuts() -> None:
    fence = (Span(10, 20),)
    assert clear_of(Span(0, 10), fence) and not clear_of(Span(0, 11), fence) and not clear_of(Span(5, 25), fence)
    assert cuts(Span(12, 15), fence) and cuts(Span(5, 15), fence) and not cuts(Span(5, 25), fence)


@pytest.mark.parametrize("module", [chunking, runs, fences_module], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
