"""Cache marks: counted wherever they stand, set only where a client has none, never more than four."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.apis import MESSAGES
from prefixpilot.errors import ConfigError
from prefixpilot.jsontext import JsonText
from prefixpilot.providers.breakpoints import BreakpointPlan, BreakpointSettings, Mark, census, plan_breakpoints
from prefixpilot.providers.limits import CacheLimits, builtin_limits

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
LONG = "word " * 300
"""More than the least minimum, counted as one token a word."""


def limits(model: str = "claude-opus-5") -> CacheLimits:
    row = builtin_limits().of("anthropic", model)
    assert row is not None
    return row


def words(text: str) -> int:
    return len(text.split())


def plan(body: dict[str, Any], settings: BreakpointSettings | None = None, **more: Any) -> BreakpointPlan:
    return plan_breakpoints(body, more.pop("limits", limits()), settings or BreakpointSettings(), words, **more)


def marked(body: dict[str, Any], settings: BreakpointSettings | None = None, **more: Any) -> Any:
    """The body as it would be sent."""
    text = JsonText.read(json.dumps(body).encode())
    return json.loads(text.edited(plan(body, settings, **more).edits))


def places(body: dict[str, Any], settings: BreakpointSettings | None = None, **more: Any) -> list[Any]:
    return [mark.pointer for mark in census(marked(body, settings, **more)).marks]


def text(words_: str = LONG, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words_, **more}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def answer(words_: str = "Yes.") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": LONG, "signature": "s"}, text(words_)]}


def test_marks_are_counted_wherever_they_stand_in_reading_order() -> None:
    body = {
        "messages": [
            user(text(cache_control=HOUR)),
            user({"type": "tool_result", "tool_use_id": "t", "content": [text(), text(cache_control=MARK)]}),
            user({"type": "document", "source": {"type": "content", "content": [text(cache_control=MARK)]}}),
        ],
        "system": [text(cache_control=MARK)],
        "tools": [{"name": "a"}, {"name": "b", "cache_control": HOUR}],
        "cache_control": MARK,
    }
    found = census(body)
    assert found.marks == (
        Mark(("tools", 1), "1h"),
        Mark(("system", 0), "5m"),
        Mark(("messages", 0, "content", 0), "1h"),
        Mark(("messages", 1, "content", 0, "content", 1), "5m"),
        Mark(("messages", 2, "content", 0, "source", "content", 0), "5m"),
    )
    assert found.automatic
    assert found.total == 6


def test_a_key_in_a_clients_own_data_is_no_mark() -> None:
    body = {
        "tools": [{"name": "a", "input_schema": {"properties": {"cache_control": {"type": "string"}}}}],
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"cache_control": 1}}]}],
        "system": [text(cache_control=None)],
    }
    assert census(body).total == 0


@pytest.mark.parametrize(
    "more",
    [
        {"cache_control": MARK},
        {"tools": [{"name": "a", "cache_control": MARK}]},
        {"system": [text(cache_control=MARK)]},
        {"messages": [user({"type": "tool_result", "content": [text(cache_control=MARK)]})]},
    ],
)
def test_a_client_that_manages_its_own_marks_is_left_alone(more: dict[str, Any]) -> None:
    body = {"system": LONG, "messages": [user(text()), answer(), user(text())], **more}
    found = plan(body)
    assert found.edits == ()
    assert found.reason == "the client sets its own marks"


def test_a_conversation_gets_them_newest_first() -> None:
    body = {
        "tools": [{"name": "a", "description": LONG * 2}, {"name": "b"}],
        "system": [text(), text()],
        "messages": [user(text()), answer(), user(text("Why?"))],
    }
    found = plan(body)
    assert [edit.pointer for edit in found.edits] == [("messages", 2, "content", 0), ("system", 1), ("tools", 1)]
    assert {edit.key for edit in found.edits} == {"cache_control"}
    assert [edit.value for edit in found.edits] == [MARK] * 3
    assert found.rewritten == frozenset()


def test_the_place_of_the_last_request_is_marked_too_if_it_is_out_of_sight() -> None:
    def body(results: int) -> dict[str, Any]:
        calls = [{"type": "tool_use", "id": str(i), "name": "a", "input": {}} for i in range(results)]
        outputs = [{"type": "tool_result", "tool_use_id": str(i), "content": "ok"} for i in range(results)]
        return {
            "system": LONG * 2,
            "messages": [user(text()), {"role": "assistant", "content": calls}, {"role": "user", "content": outputs}],
        }

    assert places(body(10)) == [("system", 0), ("messages", 2, "content", 9)]
    assert places(body(11)) == [("system", 0), ("messages", 0, "content", 0), ("messages", 2, "content", 10)]


def test_a_lone_question_is_written_for_nobody() -> None:
    body = {"system": LONG * 2, "messages": [user(text())]}
    assert places(body) == [("system", 0)]
    assert places(body, stable=1) == [("system", 0), ("messages", 0, "content", 0)]


def test_no_mark_behind_what_will_be_sent_again() -> None:
    body = {"system": LONG * 2, "messages": [user(text()), answer(), user(text())]}
    assert places(body, stable=2) == [("system", 0), ("messages", 0, "content", 0)]
    assert places(body, stable=0) == [("system", 0)]


def test_a_string_becomes_one_text_part() -> None:
    body = {
        "system": LONG * 2,
        "messages": [{"role": "user", "content": "Hi"}, answer(), {"role": "user", "content": "?"}],
    }
    found = plan(body)
    assert found.rewritten == {("system",), ("messages", 2, "content")}
    sent = marked(body)
    assert sent["system"] == [{"type": "text", "text": LONG * 2, "cache_control": MARK}]
    assert sent["messages"][2]["content"] == [{"type": "text", "text": "?", "cache_control": MARK}]
    assert sent["messages"][0] == body["messages"][0]
    before, after = MESSAGES.read(body), MESSAGES.read(sent)
    assert before is not None
    assert after is not None
    assert [s.text for s in before.segments()] == [s.text for s in after.segments()]


def test_a_string_that_was_treated_keeps_its_new_text() -> None:
    body = {"system": "old", "messages": [user(text())]}
    sent = marked(body, texts={("system",): LONG * 2})
    assert sent["system"] == [{"type": "text", "text": LONG * 2, "cache_control": MARK}]


@pytest.mark.parametrize(("model", "count"), [("claude-opus-5", 1), ("claude-opus-4-8", 0)])
def test_no_mark_is_spent_below_the_minimum(model: str, count: int) -> None:
    found = plan({"system": "word " * 512, "messages": [user(text("x"))]}, limits=limits(model))
    assert len(found.edits) == count
    assert found.reason == ("" if count else "no stable prefix is long enough")


def test_the_minimum_counts_all_that_stands_in_front() -> None:
    body = {"tools": [{"name": "a", "description": LONG}], "system": LONG, "messages": [user(text("x"))]}
    assert places(body, BreakpointSettings(messages=False)) == [("system", 0)]


def test_thinking_empty_texts_answers_and_deferred_tools_hold_none() -> None:
    body = {
        "tools": [{"name": "a", "description": LONG * 2}, {"name": "b", "defer_loading": True}],
        "system": [text(LONG), text(""), text(" \n")],
        "messages": [user(text(), text("")), answer(), {"role": "user", "content": ""}, answer()],
    }
    assert places(body) == [("tools", 0), ("system", 0), ("messages", 0, "content", 0)]


def test_parts_without_text_hold_one() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    body = {"system": LONG * 2, "messages": [user(text("x")), answer(), user(text("x"), image)]}
    assert places(body)[-1] == ("messages", 2, "content", 1)


def test_longer_lifetimes_come_first() -> None:
    body = {"system": LONG * 2, "messages": [user(text()), answer(), user(text())]}
    marks = census(marked(body, BreakpointSettings(stable_ttl="1h"))).marks
    assert [mark.ttl for mark in marks] == ["1h", "5m"]
    with pytest.raises(ConfigError, match="message_ttl"):
        BreakpointSettings(message_ttl="1h")


@pytest.mark.parametrize(("name", "value"), [("tools", 1), ("stable_ttl", "2h"), ("message_ttl", None)])
def test_settings_validate_themselves(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        BreakpointSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [{}, {"messages": 3, "system": 4, "tools": 5}, {"messages": [3, {"role": "user"}]}])
def test_an_unknown_shape_gets_none(body: dict[str, Any]) -> None:
    assert plan(body) == BreakpointPlan((), frozenset(), "nothing can hold a mark")


controls = st.sampled_from([{}, {}, {}, {"cache_control": MARK}, {"cache_control": HOUR}, {"cache_control": None}])
texts = st.sampled_from([LONG, LONG * 2, "x", "", " "])
text_parts = st.builds(lambda t, c: {"type": "text", "text": t, **c}, texts, controls)
scalars: st.SearchStrategy[Any] = st.sampled_from([None, 3, "x", [], {}])
nested = st.one_of(texts, st.lists(text_parts, max_size=3), scalars)
parts = st.one_of(
    text_parts,
    st.builds(lambda content, c: {"type": "tool_result", "content": content, **c}, nested, controls),
    st.builds(lambda c: {"type": "image", "source": {}, **c}, controls),
    st.builds(lambda: {"type": "thinking", "thinking": LONG}),
    st.builds(lambda: {"type": "tool_use", "input": {"cache_control": 1}}),
    scalars,
)
contents = st.one_of(texts, st.lists(parts, max_size=25), scalars)
turns = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "assistant"]), contents
    ),
    scalars,
)
tools = st.builds(
    lambda d, c, more: {"name": "t", "description": d, **c, **more},
    texts,
    controls,
    st.sampled_from([{}, {"defer_loading": True}]),
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.one_of(st.lists(turns, max_size=6), scalars),
        "system": st.one_of(contents, scalars),
        "tools": st.one_of(st.lists(st.one_of(tools, scalars), max_size=4), scalars),
        "cache_control": st.sampled_from([MARK, None]),
    },
)
settings = st.builds(
    BreakpointSettings,
    tools=st.booleans(),
    system=st.booleans(),
    messages=st.booleans(),
    stable_ttl=st.sampled_from(["5m", "1h"]),
)


@given(bodies, settings, st.one_of(st.none(), st.integers(-1, 7)))
def test_never_more_than_four_for_any_body(
    body: dict[str, Any], chosen: BreakpointSettings, stable: int | None
) -> None:
    before = census(body)
    sent = marked(body, chosen, stable=stable)
    after = census(sent)
    if before.total:
        assert sent == body
        return
    assert after.total <= 4
    assert [mark.ttl for mark in after.marks] == sorted((mark.ttl for mark in after.marks), key=["1h", "5m"].index)
    for mark in after.marks:
        place: Any = sent
        for step in mark.pointer:
            place = place[step]
        assert place.get("type") not in ("thinking", "tool_use")
        assert place.get("type") != "text" or place["text"].strip()
        if mark.pointer[0] == "messages":
            assert sent["messages"][mark.pointer[1]]["role"] == "user"
    assert _unmarked(sent) == _unmarked(body)


def _unmarked(value: Any) -> Any:
    """A body without marks, strings as the parts they stand for."""
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: [{"type": "text", "text": item}]
        if key in ("content", "system") and isinstance(item, str)
        else item
        if key == "input"
        else _unmarked(item)
        for key, item in value.items()
        if key != "cache_control"
    }
