"""A body that is sent on with texts put into it differs from the client's in nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.prompts.source import ChatSource, UnreadableError

FIELD = "context_blocks"


def sent(text: str, texts: dict[int, str]) -> str:
    return ChatSource.read(text.encode("utf-8", "surrogatepass"), FIELD).with_texts(texts, FIELD).decode()


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ('{"context_blocks":["A"],"m":1}', '{"m":1}'),
        ('{"m":1 , "context_blocks" : ["A"]}', '{"m":1}'),
        ('{"a":1,"context_blocks":["A"] ,"b":2}', '{"a":1 ,"b":2}'),
        ('{ "context_blocks": null }', "{  }"),
        (r'{"context\u005Fblocks":["A"],"m":1}', '{"m":1}'),
        ("{}", "{}"),
    ],
)
def test_a_member_is_cut_out_with_its_comma(given_text: str, expected: str) -> None:
    assert sent(given_text, {}) == expected
    json.loads(expected)


def test_numbers_escapes_spaces_and_repeated_keys_stay() -> None:
    head = '{ "a":0.10000000000000000555, "b":1E2,"c":-0 ,"d":1e400, "e":' + "9" * 5000 + ', "seed":1, "seed":2,'
    tail = ' "logit_bias":{"1":1.0,"1":2}, "é":"\\u00e9\\/" }'
    messages = '"messages":[{"role":"user","content":"Q\\ud800?","n":1e0}]'
    placed = messages.replace('"Q', '"[Doc 1]\\nA\\n\\nQ')
    assert sent(head + messages + "," + tail, {0: "[Doc 1]\nA"}) == head + placed + "," + tail


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]", [{"type": "text", "text": "A\n\n"}]),
        ("[ ]", [{"type": "text", "text": "A\n\n"}]),
        ('[ {"type":"x", "fps":1e0} ]', [{"type": "text", "text": "A\n\n"}, {"type": "x", "fps": 1}]),
        ('""', "A\n\n"),
        (r'"\"q"', 'A\n\n"q'),
    ],
)
def test_text_goes_in_front_of_strings_and_of_parts(content: str, expected: Any) -> None:
    text = sent(f'{{"messages":[1, {{"content":{content}}}]}}', {1: "A"})
    assert json.loads(text)["messages"] == [1, {"content": expected}]
    assert content.strip('[]"').strip() in text


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
        (b'["context_blocks"]', "no JSON object"),
        (b'{"messages":[],"messages":[]}', "messages twice"),
        (b'{"context_blocks":[],"context\\u005fblocks":[]}', "context_blocks twice"),
        (b'{"messages":[{"content":"a","content":"b"}]}', r"messages\[0\].content twice"),
        (b'{"messages":[{},{"role":"a","role":"b"}]}', r"messages\[1\].role twice"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        ChatSource.read(data, FIELD)


def test_content_that_takes_no_text_is_an_error() -> None:
    source = ChatSource.read(b'{"messages":[{"content":null},{}]}', FIELD)
    for index, error in ((0, ValueError), (1, KeyError)):
        with pytest.raises(error):
            source.with_texts({index: "A"}, FIELD)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.text() | st.lists(VALUES, max_size=2)}) | VALUES,
    max_size=3,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "", "c\\d"]) | st.just(FIELD), VALUES),
    MESSAGES,
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_as_json_it_is_the_body_with_the_texts(
    more: dict[str, Any], messages: list[Any], indent: int | None, ascii_only: bool
) -> None:
    body = {**more, "messages": messages, "z": 0}
    data = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    source = ChatSource.read(data, FIELD)
    assert source.body == body
    takes_text = [i for i, m in enumerate(messages) if isinstance(m, dict) and isinstance(m.get("content"), str | list)]
    for i in takes_text:
        content = messages[i]["content"]
        part = {"type": "text", "text": "T\n\n"}
        messages[i] = {**messages[i], "content": f"T\n\n{content}" if isinstance(content, str) else [part, *content]}
    body.pop(FIELD, None)
    assert json.loads(source.with_texts(dict.fromkeys(takes_text, "T"), FIELD)) == body
