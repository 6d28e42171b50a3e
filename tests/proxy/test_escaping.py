"""Single strings by ``orjson``: read again they are what they were, and a body gets nothing else from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.jsontext import Edit, InsertElement, JsonText, RemoveMember, SetText
from prefixpilot.jsontext import escapes as plain
from prefixpilot.proxy.escaping import compact, dumped, escaped, place

TEXTS = st.text(st.characters(codec=None) | st.sampled_from('\\"\n\r\t\x00\x7f\x1f/é\ud800😀'))
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
        assert plain.escaped(text) in (found, None)


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
    source = JsonText.read(data)
    part = {"type": "text", "text": f"{documents}\n\n"}
    edits: list[Edit] = [
        SetText(("messages", 0, "content"), f"{documents}\n\n{question}"),
        InsertElement(("messages", 1, "content"), 0, part),
        RemoveMember((), "nothing"),
    ]
    ours, ordinary = (
        json.loads(made.decode("utf-8", "surrogatepass")) for made in (place(source, edits), source.edited(edits))
    )
    assert ours == ordinary
    assert ours["messages"][1]["content"][0] == part
    assert ours["big"] == 1 << 70
