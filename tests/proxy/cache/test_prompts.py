"""Prompts in the engine's tokens: what /tokenize answers, and where the blocks of a plan end."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import ContextPilot, Request
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.cache.places import Place, halfway, places_of
from prefixpilot.proxy.cache.prompts import (
    BlockSpan,
    EnginePrompt,
    block_spans,
    estimated_spans,
    read_tokenized,
    token_bytes,
)


def byte_level(data: bytes) -> str:
    """A token's name as byte-level BPE writes it: the readable definition of that table."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(b) if b in printable else chr(256 + moved.index(b)) for b in data)


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=40))
def test_byte_level_names_are_read_back(tokens: list[bytes]) -> None:
    tokens = [*tokens, b" a"]  # a space somewhere: that is how the kind is told
    assert token_bytes([byte_level(token) for token in tokens]) == tuple(tokens)


def test_word_pieces_and_plain_names() -> None:
    assert token_bytes(["\u2581A", "\u2581caf\u00e9", "<0x0A>", "<0xZZ>"]) == (
        b" A",
        " caf\u00e9".encode(),
        b"\n",
        b"<0xZZ>",
    )
    assert token_bytes(["<s>", "hi", "\u00e9"]) == (b"<s>", b"hi", b"\xc3\xa9")


def answer(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_an_answer_is_read() -> None:
    prompt = read_tokenized(answer(count=3, max_model_len=64, tokens=[5, 6, 7], token_strs=["a", "\u0120b", "c"]))
    assert prompt is not None
    assert list(prompt.token_ids) == [5, 6, 7]
    assert prompt.pieces == (b"a", b" b", b"c")
    assert prompt.tokens == 3


@pytest.mark.parametrize("strings", [None, ["a"], ["a", 1, "c"], "abc"])
def test_token_names_that_cannot_be_used_are_left_out(strings: Any) -> None:
    prompt = read_tokenized(answer(tokens=[5, 6, 7], token_strs=strings))
    assert prompt is not None and prompt.pieces == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b"{}",
        b"{" * 100_000,
        answer(tokens=[]),
        answer(tokens="abc"),
        answer(tokens=[1, None]),
        answer(tokens=[-1]),
        answer(tokens=[1 << 32]),
        answer(tokens=[1.5]),
    ],
)
def test_what_is_no_answer_is_none(data: bytes) -> None:
    assert read_tokenized(data) is None


TEXTS = ["Alpha opens at nine.", "Beta closes at ten.", "Gamma has a pool of 25 m."]
PLAN = ContextPilot().optimize(Request.from_texts("r", TEXTS))


def prompt_of(text: str, size: int = 3) -> EnginePrompt:
    """A prompt whose tokens are ``size`` bytes each."""
    data = text.encode()
    return read_tokenized(
        json.dumps(
            {
                "tokens": list(range(len(data[::size]))),
                "token_strs": [byte_level(data[i : i + size]) for i in range(0, len(data), size)],
            }
        ).encode()
    ) or pytest.fail("no prompt")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("head", ["", "<|system|>\nBe brief.\n<|user|>\n"])
def test_blocks_stand_where_their_bytes_stand(size: int, head: str) -> None:
    text = head + render_blocks(PLAN) + "\n\nWhen does Alpha open?"
    spans = block_spans(PLAN, prompt_of(text, size))
    for n, (span, block) in enumerate(zip(spans, PLAN.blocks, strict=True), 1):
        rendered = f"[Doc {n}]\n{block.block.text}"
        start = text.encode().find(rendered.encode())
        assert start >= 0
        assert span.start == start // size
        assert span.end == (start + len(rendered.encode()) - 1) // size + 1


def test_a_text_that_stands_above_too_is_not_taken_for_the_block() -> None:
    text = f"{TEXTS[0]}\n\n{render_blocks(PLAN)}"
    spans = block_spans(PLAN, prompt_of(text, 1))
    assert spans[0] == BlockSpan(text.index("[Doc 1]"), text.index("\n\n[Doc 2]"))


def test_units_that_an_application_rendered_are_found_by_their_text() -> None:
    text = "Documents:\n" + "\n".join(f"<doc>{t}</doc>" for t in TEXTS)
    spans = block_spans(PLAN, prompt_of(text, 1))
    assert spans == tuple(BlockSpan(text.index(t), text.index(t) + len(t)) for t in TEXTS)


def test_it_stops_where_a_text_is_missing() -> None:
    assert len(block_spans(PLAN, prompt_of(f"{TEXTS[0]} and {TEXTS[2]}", 1))) == 1
    assert block_spans(PLAN, prompt_of("nothing of it")) == ()


def test_without_names_of_tokens_nothing_is_found() -> None:
    assert block_spans(PLAN, EnginePrompt(prompt_of("x").token_ids)) == ()


def test_annotations_are_no_blocks() -> None:
    plan = ContextPilot().optimize(Request.from_texts("r", [TEXTS[0], TEXTS[0], TEXTS[1]]))
    assert len(block_spans(plan, prompt_of(render_blocks(plan)))) == len(plan.head)


def test_estimates_add_up_and_stay_inside_the_prompt() -> None:
    lengths = [block.tokens for block in PLAN.blocks]
    ends = [0, *accumulate(lengths)]
    assert estimated_spans(PLAN, 10**6) == tuple(BlockSpan(a, b) for a, b in pairwise(ends))
    assert {span.end for span in estimated_spans(PLAN, 3)} == {3}


# -- as residency wants it


def test_contexts_of_first_turns_have_places_and_no_others() -> None:
    prompt = prompt_of(render_blocks(PLAN), 1)
    later = replace(PLAN, turn=1, opener=PLAN.request_id)
    (place,) = places_of((later, PLAN), prompt, None)
    spans = block_spans(PLAN, prompt)
    assert place == Place(PLAN.request_id, halfway(spans), spans[0].start, 0)
    assert all(span.start < at <= span.end for span, at in zip(spans, place.counts_at, strict=True))


def test_what_the_plan_took_to_be_cached_is_promised() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_texts("r0", TEXTS[:2]))
    plan = pilot.optimize(Request.from_texts("r1", [TEXTS[2], TEXTS[1], TEXTS[0]]))
    assert plan.prefix_len == 2
    prompt = prompt_of("head " + render_blocks(plan), 1)
    (place,) = places_of((plan,), prompt, None)
    assert (place.start, place.promised) == (5, block_spans(plan, prompt)[1].end)


def test_without_texts_of_tokens_the_plan_says_how_long_blocks_are() -> None:
    prompt = prompt_of("any other text", 1)
    expected = (Place(PLAN.request_id, halfway(estimated_spans(PLAN, 20)), 0, 0),)
    assert places_of((PLAN,), None, 20) == expected
    assert places_of((PLAN,), prompt._replace(pieces=()), None)[0].request_id == PLAN.request_id
    assert places_of((PLAN,), prompt, 20) == ()
    assert places_of((PLAN,), None, None) == ()
