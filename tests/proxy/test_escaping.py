"""Single strings by ``orjson``: read again they are what they were, and a body gets nothing else from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.jsontext import Edit, InsertElement, JsonText, RemoveMember, SetText
from prefixpilot.jsontext import escapes as plain
from prefixpilot.proxy.escaping import Placing, compact, dumped, escaped

TEXTS = st.text(st.characters(codec=None) | st.sampled_from('\\"\n\r\t\x00\x7f\x1f/é\ud800😀'))
LONG = ["a" * 300, 'He said "yes".\n' * 40, "\u00e9" * 280, "b\\" * 200]
KEPT = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(TEXTS)
def test_an_escaped_text_is_read_as_it_was(text: str) -> None:
    found = escaped(text)
    assert (found is None) == any("\ud800" <= c <= "\udfff" for c in text)
    if found is not None:
        assert json.loads(f'"{found}"') == text
        assert plain.all_escaped([text]) in ([found], None)


@given(KEPT)
def test_what_is_dumped_is_read_as_it_was(value: Any) -> None:
    assert json.loads(dumped(value)) == value
    assert json.dumps(json.loads(dumped(value))) == json.dumps(value), "the order of keys too"


@given(KEPT)
def test_compact_json_is_that_of_the_standard_library(value: Any) -> None:
    assert compact(value) == json.dumps(value, separators=(",", ":")).encode("ascii")


@given(TEXTS, TEXTS, st.booleans())
def test_a_body_is_the_same_whoever_escapes(question: str, documents: str, plainly: bool) -> None:
    body = {"messages": [{"content": question}, {"content": [{"type": "text", "text": question}]}], "big": 1 << 70}
    data = json.dumps(body, ensure_ascii=not plainly).encode("utf-8", "surrogatepass")
    source, placing = JsonText.read(data), Placing(1 << 20)
    part = {"type": "text", "text": f"{documents}\n\n"}
    edits: list[Edit] = [
        SetText(("messages", 0, "content"), f"{documents}\n\n{question}"),
        InsertElement(("messages", 1, "content"), 0, part),
        RemoveMember((), "nothing"),
    ]
    ours, ordinary = (
        json.loads(made.decode("utf-8", "surrogatepass"))
        for made in (placing.place(source, edits), source.edited(edits))
    )
    assert ours == ordinary
    assert ours["messages"][1]["content"][0] == part
    assert ours["big"] == 1 << 70


@given(st.lists(TEXTS | st.sampled_from(LONG), max_size=5), TEXTS, st.booleans())
def test_a_text_in_parts_is_written_as_if_it_were_one(parts: list[str], question: str, plainly: bool) -> None:
    data = json.dumps({"content": question}, ensure_ascii=not plainly).encode("utf-8", "surrogatepass")
    source, placing = JsonText.read(data), Placing(1 << 20)
    text = "".join(parts) + question
    whole = source.edited([SetText(("content",), text)], Placing(0).all_escaped)
    for _ in range(2):  # new to it, and known
        assert placing.place(source, [SetText(("content",), text, (*parts, question))]) == whole
        assert (
            placing.place(source, [SetText(("content",), text, (*parts[:-1], "".join(parts[-1:]) + question))]) == whole
        )


def test_parts_that_do_not_end_with_the_old_string_are_not_asked() -> None:
    source = JsonText.read(b'{"content": "Why?"}')
    assert source.edited([SetText(("content",), "How?", ("H", "ow?"))]) == b'{"content": "How?"}'


@given(st.lists(st.sampled_from(LONG), max_size=8))
def test_a_text_that_came_before_is_escaped_as_before(texts: list[str]) -> None:
    placing = Placing(8 * 2 * 4096)
    for text in texts:
        assert placing.all_escaped([text]) == [escaped(text)]
        assert placing.size <= 8 * 2 * 4096


def test_blocks_and_what_stands_around_them_are_kept() -> None:
    placing = Placing(1 << 20)
    assert placing.all_escaped(["a" * 100_000, "\ud800" * 1000]) is None
    assert placing.all_escaped(["a" * 100_000]) == ["a" * 100_000]
    assert placing.size == 0
    for text in (LONG[0], "[Doc 1]\n"):
        before = placing.size
        assert placing.all_escaped([text]) == [escaped(text)]
        assert placing.size > before
