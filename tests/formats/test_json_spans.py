"""JSON with places: equal to the standard library on every JSON text, and nothing on everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.formats.json_spans import MAX_DEPTH, JsonArray, JsonObject, JsonString, JsonValue, json_at, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def data(value: JsonValue, text: str) -> Any:
    """A value that was read, as the standard library would have it."""
    if isinstance(value, JsonString):
        assert text[value.span.start - 1] == text[value.span.end] == '"'
        assert text[value.span.start : value.span.end] == value.raw
        return json.loads(f'"{value.raw}"')
    if isinstance(value, JsonObject):
        return {key: data(member, text) for key, member in value.members.items()}
    if isinstance(value, JsonArray):
        return [data(element, text) for element in value.elements]
    return json.loads(text[value.span.start : value.span.end])


@given(VALUES, st.sampled_from([None, 0, 4]), st.booleans())
def test_what_is_read_is_what_was_written(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    read = read_json(f" {text}\n")
    assert read is not None
    assert data(read, f" {text}\n") == value


@given(VALUES, st.data())
def test_a_text_is_json_here_where_it_is_json_there(value: Any, draws: st.DataObject) -> None:
    text = json.dumps(value)
    at = draws.draw(st.integers(0, len(text)))
    broken = text[:at] + draws.draw(st.text('[]{},:"\\ 0truealse-.x', max_size=2)) + text[at + 1 :]
    try:
        expected = json.loads(broken)
    except ValueError:
        assert read_json(broken) is None
        return
    read = read_json(broken)
    if read is None:  # only what two readers may read in two ways
        assert "Infinity" in broken or "NaN" in broken or len(json.dumps(expected)) < len(broken)
    else:
        assert data(read, broken) == expected


@given(st.text('[]{},:"\\ u0d8afntrue1-.eE\n', max_size=60))
def test_no_text_raises(text: str) -> None:
    read_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        "[1,]",
        "{,}",
        "[1 2]",
        '{"a"}',
        "[}",
        '"\n"',
        '"\\x"',
        "[1] 2",
        "",
        "]",
        "01",
        "NaN",
        '{"a":}',
    ],
)
def test_what_is_no_json_or_says_two_things(text: str) -> None:
    assert read_json(text) is None


def test_depth_is_bounded() -> None:
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert read_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) is None
    assert read_json("[" * 100_000) is None


def test_a_value_in_the_midst_of_a_text() -> None:
    value = json_at("facts: [1] and more", 6)
    assert value is not None
    assert value.span == (7, 10)


def test_half_a_surrogate_pair_has_no_text() -> None:
    value = read_json('"\\ud83d"')
    assert isinstance(value, JsonString)
    assert value.text is None
    whole = read_json('"\\ud83d\\ude00"')
    assert isinstance(whole, JsonString)
    assert whole.text == "\U0001f600"
