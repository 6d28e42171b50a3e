"""A text with edits in it is, as JSON, the value with the edits in it; and differs from the text in nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.errors import InvalidInputError
from prefixpilot.jsontext import (
    Edit,
    InsertElement,
    JsonText,
    NoObjectError,
    Permute,
    Pointer,
    RemoveMember,
    SetMember,
    SetText,
    UnreadableError,
)


def edited(text: str, *edits: Edit) -> str:
    return JsonText.read(text.encode("utf-8", "surrogatepass")).edited(edits).decode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"x":["A"],"m":1}', '{"m":1}'),
        ('{"m":1 , "x" : ["A"]}', '{"m":1}'),
        ('{"a":1,"x":["A"] ,"b":2}', '{"a":1 ,"b":2}'),
        ('{ "x": null }', "{  }"),
        (r'{"\u0078":["A"],"m":1}', '{"m":1}'),
        ('{"x":1,"m":2, "x":3}', '{"m":2}'),
        ("{}", "{}"),
        (' { "m" : 1 }\n', ' { "m" : 1 }\n'),
    ],
)
def test_a_member_is_removed_with_its_comma(text: str, expected: str) -> None:
    assert edited(text, RemoveMember((), "x")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"x": [1]}'),
        ('{ "m":1 }', '{ "m":1, "x": [1] }'),
        ('{"x" : 0 ,"m":1}', '{"x" : [1] ,"m":1}'),
        ('{"x":0,"x":2}', '{"x":0,"x":[1]}'),
    ],
)
def test_a_member_is_set_in_its_place_or_as_the_last(text: str, expected: str) -> None:
    assert edited(text, SetMember((), "x", [1])) == expected


def test_the_last_member_goes_and_another_comes() -> None:
    assert edited('{ "x":1}', RemoveMember((), "x"), SetMember((), "y", None)) == '{ "y": null}'


@pytest.mark.parametrize(
    ("text", "index", "expected"),
    [
        ('{"a":[]}', 0, '{"a":["N"]}'),
        ('{"a":[ 1e0 ,2]}', 0, '{"a":[ "N", 1e0 ,2]}'),
        ('{"a":[ 1e0 ,2]}', 1, '{"a":[ 1e0 ,"N", 2]}'),
        ('{"a":[ 1e0 ,2 ]}', 2, '{"a":[ 1e0 ,2, "N" ]}'),
    ],
)
def test_an_element_is_inserted(text: str, index: int, expected: str) -> None:
    assert edited(text, InsertElement(("a",), index, "N")) == expected


def test_elements_change_places_as_they_are_written() -> None:
    text = r'{"a" : [ {"t":"\u00e9","n":1.50}, [ ],' "\n" '"z" ]}'
    moved = r'{"a" : [ "z", {"t":"\u00e9","n":1.50},' "\n" "[ ] ]}"
    assert edited(text, Permute(("a",), [2, 0, 1])) == moved
    both = moved.replace(r'"\u00e9"', '"T"').replace("[ ] ]", "[ ], 0 ]")
    assert edited(text, Permute(("a",), [2, 0, 1]), SetText(("a", 0, "t"), "T"), InsertElement(("a",), 3, 0)) == both


@pytest.mark.parametrize(
    ("written", "new", "expected"),
    [
        (r'"\/q\u00e9"', "A\n/qé", r'"A\n\/q\u00e9"'),
        (r'"\/q\u00e9"', "/qé\nA", r'"\/q\u00e9\nA"'),
        (r'"\/q\u00e9"', "é/", r'"\u00e9/"'),
        ('"é"', "öé", '"öé"'),
        ('"é"', "o\ud800", r'"o\ud800"'),
        ('"Q\\ud800?"', "A\n\nQ\ud800?", '"A\\n\\nQ\\ud800?"'),
        ('""', '"', r'"\""'),
        ('"x"', "", '""'),
    ],
)
def test_what_stays_of_a_string_stays_as_written(written: str, new: str, expected: str) -> None:
    assert edited(f'{{"s":{written}}}', SetText(("s",), new)) == f'{{"s":{expected}}}'


def test_numbers_escapes_spaces_marks_and_repeated_keys_stay() -> None:
    head = '\ufeff{ "a":0.10000000000000000555, "b":1E2,"c":-0 ,"d":1e400, "e":' + "9" * 5000 + ', "seed":1, "seed":2,'
    tail = ' "logit_bias":{"1":1.0,"1":2}, "é":"\\u00e9\\/" }\r\n'
    messages = '"messages":[1,{"role":"user","content":"Q\\ud800?","n":1e0}]'
    placed = messages.replace('"Q', '"[Doc 1]\\nA\\n\\nQ')
    edit = SetText(("messages", 1, "content"), "[Doc 1]\nA\n\nQ\ud800?")
    assert edited(head + messages + "," + tail, edit) == head + placed + "," + tail
    assert edited(head + messages + "," + tail) == head + messages + "," + tail


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"x":NaN}', "NaN"),
        (b'{"x":-Infinity}', "-Infinity"),
        (b'{"x":"\xff"}', "not UTF-8"),
        ('{"x":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"x":' + b"[" * 9000 + b"]" * 9000 + b"}", "nested"),
        (b'{"messages":[' * 9000, "nested"),
        (b"", "not JSON"),
        (b'{"x":1', "not JSON"),
        (b'{"x":1}}', "not JSON"),
        (b'{"x" 1}', "not JSON"),
        (b'{"x":1,}', "not JSON"),
        (b"{1:1}", "not JSON"),
        (b'{"messages":[1 2]}', "not JSON"),
        (b'{"x":"a\nb"}', "not JSON"),
        (b'["context_blocks"]', "no JSON object"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason) as caught:
        JsonText.read(data)
    assert isinstance(caught.value, NoObjectError) == (reason == "no JSON object")


@pytest.mark.parametrize(
    ("data", "repeats"),
    [
        (b'{"a":[{"b":1}],"b":{"a":1}}', []),
        (b'{"a":1,"b":2,"a":3}', [("a",)]),
        (rb'{"a":1,"\u0061":[{"b":1,"b":2,"c":1,"c":1,"c":1}]}', [("a",), ("a", 0, "b"), ("a", 0, "c")]),
        (b'{"a":{"x":1,"x":2},"a":{"x":1}}', [("a",)]),
    ],
)
def test_repeated_keys_are_told(data: bytes, repeats: list[Pointer]) -> None:
    assert list(JsonText.read(data).repeats()) == repeats


@pytest.mark.parametrize(
    "edits",
    [
        [SetText(("n",), "T")],
        [SetText(("nobody",), "T")],
        [SetText(("s",), "T"), SetText(("s",), "U")],
        [SetText(("s", "t"), "T")],
        [SetText(("a", 3), "T")],
        [SetText(("a", -1), "T")],
        [SetText(("a", "0"), "T")],
        [Permute(("a",), [0, 0, 1])],
        [Permute(("a",), [1, 0])],
        [Permute(("a",), [2, 1, 0]), Permute(("a",), [0, 1, 2])],
        [Permute((), [0])],
        [InsertElement(("a",), 4, 1)],
        [InsertElement(("s",), 0, 1)],
        [SetMember(("a",), "k", 1)],
        [SetMember((), "k", 1), SetMember((), "k", 2)],
        [SetMember((), "s", 1), RemoveMember((), "s")],
        [SetMember((), "s", 1), SetText(("s",), "T")],
        [RemoveMember((), "s"), SetText(("s",), "T")],
        [RemoveMember(("s",), "k")],
    ],
)
def test_an_edit_that_cannot_be_meant_is_an_error(edits: list[Edit]) -> None:
    source = JsonText.read(b'{"n":1,"s":"x","a":["p","q",1]}')
    with pytest.raises(InvalidInputError, match="edits at"):
        source.edited(edits)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=3), children, max_size=4),
    max_leaves=14,
)


def containers(value: Any, pointer: Pointer = ()) -> Iterable[tuple[Pointer, Any]]:
    """All values in a value, outermost first."""
    yield pointer, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in items:
        yield from containers(each, (*pointer, step))


def draw_edits(data: st.DataObject, value: Any) -> list[Edit]:
    """Edits that do not contradict each other."""
    edits: list[Edit] = []
    gone: list[Pointer] = []
    for pointer, each in containers(value):
        if any(pointer[: len(other)] == other for other in gone) or not data.draw(st.booleans()):
            continue
        if isinstance(each, str):
            edits.append(SetText(pointer, data.draw(st.text(max_size=4) | st.just("N" + each) | st.just(each + "\n"))))
        elif isinstance(each, list):
            edits.append(Permute(pointer, data.draw(st.permutations(range(len(each))))))
            edits += [
                InsertElement(pointer, data.draw(st.integers(0, len(each))), f"new {n}")
                for n in range(data.draw(st.integers(0, 2)))
            ]
        elif isinstance(each, dict):
            for key in data.draw(st.lists(st.sampled_from([*each, "a", "new"]), unique=True, max_size=3)):
                gone.append((*pointer, key))
                edits.append(data.draw(st.sampled_from([RemoveMember(pointer, key), SetMember(pointer, key, [1])])))
    return data.draw(st.permutations(edits))


def specified(value: Any, edits: Iterable[Edit], pointer: Pointer = ()) -> Any:
    """What the edits mean, on the value."""
    own = [edit for edit in edits if edit.pointer == pointer]
    if isinstance(value, dict):
        value = {key: specified(each, edits, (*pointer, key)) for key, each in value.items()}
    elif isinstance(value, list):
        value = [specified(each, edits, (*pointer, i)) for i, each in enumerate(value)]
    before: dict[int, list[Any]] = {}
    for edit in own:
        match edit:
            case SetText():
                value = edit.text
            case Permute():
                value = [value[i] for i in edit.order]
            case RemoveMember():
                value.pop(edit.key, None)
            case SetMember():
                value[edit.key] = edit.value
            case InsertElement():
                before.setdefault(edit.at, []).append(edit.value)
    if before:
        value = [new for i in range(len(value) + 1) for new in (*before.get(i, ()), *value[i : i + 1])]
    return value


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=5), st.sampled_from([None, 1]), st.booleans(), st.data())
def test_edits_of_the_text_are_edits_of_the_value(
    value: dict[str, Any], indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    source = JsonText.read(written)
    assert source.value == value
    assert source.edited([]) == written
    edits = draw_edits(data, value)
    assert json.loads(source.edited(edits)) == specified(copy.deepcopy(value), edits)
    assert source.value == value


MARKED = st.recursive(
    st.integers(10**6, 10**7) | st.text("ab", min_size=1, max_size=3),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text("ab", max_size=3), children, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), MARKED, min_size=1, max_size=5), st.data())
def test_every_character_that_no_edit_covers_stays(value: dict[str, Any], data: st.DataObject) -> None:
    """One string of a body, written with spaces and escapes of its own, is set: all before it and behind it stays."""
    strings = [(pointer, each) for pointer, each in containers(value) if isinstance(each, str)]
    if not strings:
        return
    pointer, _ = data.draw(st.sampled_from(strings))
    marked = json.dumps(specified(copy.deepcopy(value), [SetText(pointer, "<here>")]))
    head, tail = data.draw(
        st.sampled_from([marked, marked.replace(": ", " :\t"), marked.replace('"a', r'"\u0061')])
    ).split("<here>")
    new = data.draw(st.text("cd\n"))
    assert edited(f"{head}<here>{tail}", SetText(pointer, new)) == f"{head}{json.dumps(new)[1:-1]}{tail}"
