"""A history that no longer fits: the oldest turns go, and no annotation loses its target."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot import ContextPilot, Request
from prefixpilot.core import ContextBlock, RequestId
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.memory.records import Restoration, Turn
from prefixpilot.proxy.memory.window import LOW_WATER, fitted, laid_out, spans_of, text_bytes

from .support import PILOT, converse, history, turn

HEADING = re.compile(r"\[(Doc \d+)\]\n(.*?)(?=\n\n|$)", re.DOTALL)
ANNOTATION = re.compile(r"Please refer to \[(Doc \d+)\] (?:above|in the previous conversation)\.")


def restored(path: list[Turn]) -> Restoration:
    index = {each.chain: 2 * n for n, each in enumerate(path)}
    return Restoration.of(path, index, ambiguous=False, assumed=False)


def shown(path: list[Turn]) -> str:
    return "\n\n".join(each.text for each in path if each.text)


def check(before: list[Turn], after: list[Turn]) -> None:
    """Every document that stood for a turn that is left stands in full, before all that refers to it."""
    prompt, original = shown(after), dict(HEADING.findall(shown(before)))
    headings = dict(HEADING.findall(prompt))
    assert len(HEADING.findall(prompt)) == len(headings), "a label names one block"
    for each in after:
        for label in each.labels.values():
            assert headings[label] == original[label]
    for annotation in ANNOTATION.finditer(prompt):
        assert f"[{annotation.group(1)}]\n" in prompt[: annotation.start()]
    for n, each in enumerate(after):
        assert each.parent is (after[n - 1] if n else None)
        assert set(each.record.labels.values()) == {label for label, _ in HEADING.findall(shown(after[: n + 1]))}
        if each.plan is not None and each.spans:
            assert len(each.spans) == len(each.plan.blocks)
            for planned, span in zip(each.plan.blocks, each.spans, strict=True):
                paragraph = each.text[span.start : span.end]
                assert paragraph == (planned.location_annotation or f"[{planned.label}]\n{original[planned.label]}")


def test_what_fits_is_left_as_it_is() -> None:
    whole = restored(converse([["a"], ["b"]]))
    assert fitted(whole, 10, 1000, 4) is whole
    assert fitted(Restoration(), 5000, 1000, 4) == Restoration()


def test_the_oldest_turns_go_and_what_later_ones_refer_to_moves() -> None:
    long = ["one " * 50, "two " * 150, "three " * 50]
    path = converse([[long[0], long[1]], [long[2], long[0]], [long[0], long[2]]])
    whole = restored(path)
    size = text_bytes(shown(path))
    cut = fitted(whole, 0, size - 50, 6)
    assert (sorted(cut.turns), cut.dropped) == ([2, 4], 1)
    after = [cut.turns[2], cut.turns[4]]
    check(path, after)
    assert after[0].text == f"[Doc 3]\n{long[2]}\n\n[Doc 1]\n{long[0]}"
    assert after[1].text == path[2].text, "its targets stand in the turn before it"
    assert after[0].record.next_number == path[1].record.next_number
    assert [each.stem for each in after] == [path[1].identity, path[2].identity]
    assert path[1].text.endswith("in the previous conversation."), "the recorded turn is not changed"


def test_cut_down_to_a_part_so_that_it_lasts() -> None:
    path = converse([[f"{n} " + "x" * 100] for n in range(40)])
    cut = fitted(restored(path), 100, 3000, 80)
    size = sum(text_bytes(each.text) for each in cut.turns.values())
    assert 3000 * LOW_WATER - 250 < size + 100 <= 3000 * LOW_WATER
    again = fitted(cut, 500, 3000, 80)
    assert again is cut


def test_the_newest_turn_stays_even_if_it_is_too_long() -> None:
    path = converse([["x" * 100], ["x" * 100, "y" * 5000]])
    cut = fitted(restored(path), 0, 1000, 2)
    assert list(cut.turns) == [2]
    check(path, list(cut.turns.values()))
    gone = fitted(restored(path), 0, 1000, 4)
    assert (dict(gone.turns), gone.dropped) == ({}, 2)


def test_turns_of_another_rendering_go_whole() -> None:
    path = converse([["x" * 500], ["x" * 500, "y" * 500], ["z"]])
    for each in path:
        each.spans = ()
    cut = fitted(restored(path), 0, 1000, 6)
    assert sorted(cut.turns) == [4]
    check(path, list(cut.turns.values()))


def test_spans_are_known_only_of_our_own_rendering() -> None:
    plan = PILOT.propose(Request.from_texts("r", ["a", "b"]))
    assert spans_of(plan, render_blocks(plan)) == ((0, 9), (11, 20))
    assert spans_of(plan, "something else") == ()


DOCUMENTS = st.lists(st.integers(0, 7), max_size=4)


@settings(max_examples=200)
@given(st.lists(DOCUMENTS, min_size=1, max_size=8), st.integers(0, 2500), st.integers(0, 3), st.booleans())
def test_random_histories_cut_again_and_again(turns: list[list[int]], room: int, more: int, loop: bool) -> None:
    path = converse([[f"Text {n}. " + "word " * (10 * n + 1) for n in texts] for texts in turns])
    newest = 2 * (len(path) - loop)
    first = fitted(restored(path), 0, room, newest)
    kept = [first.turns[i] for i in sorted(first.turns)]
    check(path, kept)
    size = sum(text_bytes(each.text) for each in kept)
    assert size <= room or len(kept) <= 1 or not any(each.text for each in kept[:-1])
    for n in range(more):  # the branch goes on, and is cut again
        questions = [f"Question {i}?" for i in range(len(path) + 1)]
        path.append(turn(questions, path[-1], [f"Text {n}. " + "word " * (10 * n + 1), f"new {n}"]))
        kept.append(turn(questions, kept[-1] if kept else None, [f"Text {n}. " + "word " * (10 * n + 1), f"new {n}"]))
        if not kept[-1].parent:
            return  # labels begin anew
        index = {each.chain: 2 * i for i, each in enumerate(path)}
        again = fitted(Restoration.of(kept, index, ambiguous=False, assumed=False), 0, room, 2 * len(path))
        before, kept = kept, [again.turns[i] for i in sorted(again.turns)]
        check(before, kept)
        assert again.dropped >= first.dropped


def test_history_helper_is_what_the_chains_say() -> None:
    (one,) = converse([["a"]])
    assert history(["Question 0?"]).chains[0] == one.chain


def test_the_parts_of_a_text_are_that_text_and_hold_the_words_of_its_blocks_themselves() -> None:
    words = ["One. " * 99, "Two."]
    blocks = [ContextBlock(words[0]), ContextBlock(words[1], title="T"), ContextBlock(words[0])]
    plan = ContextPilot().propose(Request(tuple(blocks), RequestId("r")))
    for planned in (plan, replace(plan, order_annotation="Read it so.")):
        text = render_blocks(planned)
        spans, parts = laid_out(planned, text)
        assert "".join(parts) == text and spans == spans_of(planned, text)
        assert any(part is words[0] for part in parts)
        assert "".join(laid_out(planned, text + "!").parts) == text + "!"
        assert laid_out(planned, "!" + text) == laid_out(planned, text.replace("\n\n", "\n \n", 1)) == ((), ())
