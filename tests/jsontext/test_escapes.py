"""Fast paths over JSON strings, against what ``json`` does."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.jsontext.escapes import escaped
from prefixpilot.jsontext.layout import Layout

TEXTS = st.text(st.characters(codec=None) | st.sampled_from('\\"\n\r\t\x00\x7f\x1f/é\ud800😀'))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(TEXTS)
def test_escaped_is_what_json_writes(text: str) -> None:
    found = escaped(text)
    if found is not None:
        assert found == json.dumps(text, ensure_ascii=False)[1:-1]
        assert not text.isascii() or found == json.dumps(text)[1:-1]
    else:
        rare = any((c < " " and c not in "\n\r\t") or c == "\x7f" for c in text)
        assert rare or any("\ud800" <= c <= "\udfff" for c in text)


@given(VALUES, st.sampled_from(["", " ", "\n", ",", "]", "} "]), st.sampled_from([None, 1]), st.booleans())
def test_a_value_ends_where_json_says(value: Any, behind: str, indent: int | None, plain: bool) -> None:
    text = "[" + json.dumps(value, ensure_ascii=not plain, indent=indent)
    assert Layout(text + behind).end(1) == len(text)
