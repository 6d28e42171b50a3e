"""Elements that are known: read as if they were not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefixpilot.jsontext import JsonText, KnownElements, UnreadableError
from prefixpilot.jsontext.known import SHORTEST

ROOM = 1 << 20
LONG = 'A long line, "quoted", with \\ and\ttabs.\n' * 12

texts = st.builds(str.__add__, st.sampled_from(["", LONG, LONG[1:], "é" + LONG, LONG + "\ud800"]), st.text(max_size=5))
objects = st.fixed_dictionaries(
    {"text": texts}, optional={"id": st.integers() | st.text(max_size=3), "list": st.just([1])}
)
elements = st.lists(texts | objects | st.integers() | st.none() | st.lists(texts, max_size=2), max_size=5)
spaces = st.sampled_from([", ", ",", " ,\n "])


def known() -> KnownElements:
    return KnownElements(ROOM, ("blocks",))


def read(data: bytes, of: KnownElements | None) -> Any:
    """Value, repeated keys and text; or why not."""
    try:
        source = JsonText.read(data, of)
    except UnreadableError as error:
        return str(error)
    return source.value, list(source.repeats()), source.edited(())


@given(st.lists(elements, min_size=1, max_size=4), spaces, st.booleans())
def test_any_body_is_read_as_without(bodies: list[list[Any]], comma: str, ascii: bool) -> None:
    of = known()
    for blocks in bodies * 2:
        body = json.dumps({"a": blocks, "blocks": blocks, "z": 1}, separators=(comma, ": "), ensure_ascii=ascii)
        data = body.encode("utf-8", "surrogatepass")
        assert read(data, of) == read(data, None)
        of.check_invariants()


BROKEN = [
    '{"blocks": [%s,]}',
    '{"blocks": [%s %s]}',
    '{"blocks": [%s',
    '{"blocks": [%s, ',
    '{"blocks": [%s}',
    '{"blocks": [,%s]}',
    '{"blocks": [%sx]}',
    '{"blocks": [%s]] }',
    '{"blocks": [%s, NaN]}',
    '{"blocks": [%s, "a\nb"]}',
    '{"blocks": [%s], "blocks": [%s]}',
]


@pytest.mark.parametrize("shape", BROKEN)
def test_what_is_broken_is_told_as_without(shape: str) -> None:
    of = known()
    written = json.dumps(LONG)
    read(f'{{"blocks": [{written}]}}'.encode(), of)
    data = shape.replace("%s", written).encode()
    assert read(data, of) == read(data, None)


@given(st.integers(0, len(json.dumps(LONG)) + 20))
@example(0)
def test_a_body_that_is_cut_is_broken_wherever_it_is_cut(end: int) -> None:
    of = known()
    data = f'{{"blocks": [{json.dumps(LONG)}]}}'.encode()
    read(data, of)
    assert read(data[:end], of) == read(data[:end], None)


def test_what_came_before_is_the_same_object() -> None:
    of = known()
    blocks = [LONG, {"text": LONG, "id": 1}]
    first = JsonText.read(json.dumps({"blocks": blocks}).encode(), of).value["blocks"]
    again = JsonText.read(json.dumps({"x": 1, "blocks": blocks[::-1]}).encode(), of).value["blocks"]
    assert again[0] is first[1] and again[1] is first[0]


def test_others_that_begin_alike_are_told_apart() -> None:
    of = known()
    for text in (LONG + "a", LONG + "b", LONG, LONG + "a"):
        assert JsonText.read(json.dumps({"blocks": [text]}).encode(), of).value == {"blocks": [text]}


@pytest.mark.parametrize(
    "element",
    [
        '"short"',
        json.dumps({"text": LONG, "list": []}),
        f'{{"text": "a", "text": {json.dumps(LONG)}}}',  # two values, of which parsers take one or the other
        json.dumps({f"key {i}": LONG for i in range(9)}),
        json.dumps([LONG]),
    ],
)
def test_what_is_short_or_might_be_larger_than_it_is_written_is_not_kept(element: str) -> None:
    of = known()
    JsonText.read(f'{{"blocks": [{element}]}}'.encode(), of)
    assert of.size == 0


def test_other_members_are_read_as_ever() -> None:
    of = known()
    JsonText.read(json.dumps({"messages": [LONG]}).encode(), of)
    assert of.size == 0


def test_what_is_kept_has_a_bound() -> None:
    of = KnownElements(64 << 10, ("blocks",))
    for i in range(200):
        JsonText.read(json.dumps({"blocks": [f"{i} {'x' * SHORTEST * (i % 7 + 1)}"]}).encode(), of)
        assert of.size <= 64 << 10
    of.check_invariants()
    assert of.size > 16 << 10
