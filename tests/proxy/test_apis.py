"""Context blocks in each of the APIs: where they stand, how they come back, how they fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.call import Call, RefusedError
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.memory.reply import Likeness, Said

from .dialects import Desk, answer, body, events, stream
from .support import InjectedError, metric, said_in

ALL = ("chat", "completions", "responses", "messages")
TALKING = ("chat", "responses", "messages")
PLAIN = "[Doc 1]\nA\n\n[Doc 2]\nB"


def fail(*args: Any) -> Any:
    raise InjectedError("injected")


@pytest.mark.parametrize("api", ALL)
@pytest.mark.parametrize("steps", [{}, {"place": fail}], ids=["ordinary", "last resort"])
def test_blocks_stand_in_front_of_the_newest_user_message(api: str, steps: dict[str, Any]) -> None:
    given = body(api, ["Q?", "ok", "R?"], ["A", "B"], temperature=0.5, unknown={"k": [1.5]})
    sent = Desk(**steps).ask(api, given)
    before = given["prompt"] if api == "completions" else "R?"
    assert sent.texts[-1] == f"{PLAIN}\n\n{before}"
    expected = body(api, ["Q?", "ok", "R?"], temperature=0.5, unknown={"k": [1.5]})
    if api == "completions":
        expected["prompt"] = sent.texts[-1]
    else:
        expected["input" if api == "responses" else "messages"][-1]["content"] = sent.texts[-1]
    assert sent.body == expected
    assert list(sent.body) == list(expected)
    assert sent.forward.outcome == ("fallback" if steps else "planned")


@pytest.mark.parametrize("steps", [{}, {"place": fail}], ids=["ordinary", "last resort"])
def test_each_api_has_parts_of_its_own(steps: dict[str, Any]) -> None:
    desk = Desk(**steps)
    image = {"type": "image"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "R"}
    question = {"type": "text", "text": "Q?"}
    for api, kind, content, at in (
        ("chat", "text", [image], 0),
        ("responses", "input_text", [image], 0),
        ("messages", "text", [image, question], 0),
        ("messages", "text", [result, result, question], 2),
        ("messages", "text", [image, result], 2),
    ):
        given = body(api, ["Q?"], ["A"])
        given["input" if api == "responses" else "messages"][-1]["content"] = content
        part = {"type": kind, "text": "[Doc 1]\nA\n\n"}
        assert desk.ask(api, given).texts[-1] == [*content[:at], part, *content[at:]]


@pytest.mark.parametrize("steps", [{}, {"place": fail}], ids=["ordinary", "last resort"])
def test_the_input_of_a_response_may_be_one_string(steps: dict[str, Any]) -> None:
    sent = Desk(**steps).ask("responses", {"input": "Q?", "context_blocks": ["A"]})
    assert sent.body == {"input": "[Doc 1]\nA\n\nQ?"}


@pytest.mark.parametrize("api", TALKING)
@pytest.mark.parametrize("placing", [(), (1,), (2,)], ids=["ordinary", "second fails", "third fails"])
def test_a_conversation_gets_back_what_was_sent(api: str, placing: tuple[int, ...]) -> None:
    numbers: list[int] = []

    def place(source: Any, edits: Any) -> Any:
        numbers.append(0)
        return fail() if len(numbers) - 1 in placing else source.edited(edits)

    desk = Desk(place=place)
    turns: list[str] = []
    sent = []
    for question, blocks, reply in (("Q?", ["A", "B"], "one"), ("R?", ["B", "C"], "two"), ("S?", None, "three")):
        turns.append(question)
        sent.append(desk.ask(api, body(api, turns, blocks), "c", reply))
        turns.append(reply)
    assert [s.texts for s in sent[1:]] == [
        [*sent[0].texts, "one", sent[1].texts[-1]],
        [*sent[1].texts, "two", "S?"],
    ]
    assert "[Doc 3]" in sent[1].texts[-1]
    assert desk.ask(api, body(api, turns[:-1]), "d").texts == turns[:-1], "another conversation"


def test_a_completion_stands_alone() -> None:
    desk = Desk()
    for _ in range(2):
        sent = desk.ask("completions", body("completions", ["Q?"], ["A", "B"]), "c")
        assert sent.texts == [f"{PLAIN}\n\nQ?"]
        assert sent.plan["recorded"] is None
    assert desk.ask("completions", body("completions", ["Q?"]), "c").texts == ["Q?"]


@pytest.mark.parametrize("more", [{"previous_response_id": "r"}, {"conversation": "x"}])
def test_turns_that_the_server_keeps_are_not_ours(more: dict[str, Any]) -> None:
    desk = Desk()
    desk.ask("responses", body("responses", ["Q?"], ["A"]), "c")
    later = desk.ask("responses", {"input": "R?", "context_blocks": ["A", "B"], **more}, "c")
    assert later.body == {"input": f"{PLAIN}\n\nR?", **more}
    assert (later.plan["recorded"], later.plan["restored"], later.plan["replaced"]) == (False, 0, 0)
    assert not desk.ask("responses", {"input": "R?", **more}, "c").forward.touched


def test_cache_marks_that_move_are_no_edit_of_the_history() -> None:
    desk = Desk()
    mark = {"cache_control": {"type": "ephemeral"}}

    def marked(text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}

    plain: list[dict[str, Any]] = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "ok"}]
    first = desk.ask("messages", {"messages": [marked("Q?")], "context_blocks": ["A"]}, "c")
    assert first.texts == [[{"type": "text", "text": "[Doc 1]\nA\n\n"}, *marked("Q?")["content"]]]
    second = desk.ask("messages", {"messages": [*plain, marked("R?")]}, "c")
    assert second.texts == ["[Doc 1]\nA\n\nQ?", "ok", marked("R?")["content"]]


def test_the_first_question_of_a_response_is_known_in_all_its_forms() -> None:
    content = [{"type": "input_text", "text": "Q?"}]
    for form in ({"role": "user", "content": "Q?"}, {"type": "message", "role": "user", "content": content}):
        desk = Desk()
        desk.ask("responses", {"input": "Q?", "context_blocks": ["A"]}, "c")
        items = [form, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "R?"}]
        later = desk.ask("responses", {"input": items}, "c")
        placed = later.body["input"][0]["content"]
        assert placed in ("[Doc 1]\nA\n\nQ?", [{"type": "input_text", "text": "[Doc 1]\nA\n\n"}, *content])
        assert later.body["input"][1:] == items[1:]


def in_loop(api: str) -> tuple[list[Any], list[Any]]:
    """What the engine says when it calls a tool, and the messages of the next request after the user's."""
    if api == "chat":
        call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [said], [said, {"role": "tool", "tool_call_id": "t", "content": "42"}]
    if api == "messages":
        use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
        parts = [{"type": "thinking", "thinking": "x", "signature": "s"}, use]
        return parts, [{"role": "assistant", "content": parts}, {"role": "user", "content": [result]}]
    called = {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"}
    items = [{"type": "reasoning", "id": "r", "summary": []}, called]
    return items, [*items, {"type": "function_call_output", "call_id": "t", "output": "42"}]


@pytest.mark.parametrize("api", TALKING)
def test_a_tool_loop_keeps_its_user_message(api: str) -> None:
    desk = Desk()
    said, more = in_loop(api)
    reply = answer(api, "")
    if api == "chat":
        reply["choices"][0]["message"] = said[0]
    else:
        reply["output" if api == "responses" else "content"] = said
    first = desk.ask(api, body(api, ["Q?"], ["A", "B"]), "c", reply)
    key = "input" if api == "responses" else "messages"
    loop = body(api, ["Q?"])
    loop[key] += more
    again = desk.ask(api, loop, "c")
    assert again.body[key] == [*first.body[key], *more]
    known = desk.ask(api, {**loop, "context_blocks": ["B"]}, "c")
    assert known.body == again.body
    with pytest.raises(RefusedError, match="cannot change in a tool loop"):
        desk.ask(api, {**loop, "context_blocks": ["New"]}, "c")
    loop[key] += [{"role": "assistant", "content": "It is 42."}, {"role": "user", "content": "R?"}]
    assert desk.ask(api, loop, "c").body[key][: len(more) + 1 + (api == "chat")] == again.body[key]


@pytest.mark.parametrize("api", TALKING)
def test_replies_tell_branches_apart(api: str) -> None:
    desk = Desk()
    first = {reply: desk.ask(api, body(api, ["Q?"], [reply]), "c", reply) for reply in ("one", "two")}
    for reply, sent in first.items():
        assert desk.ask(api, body(api, ["Q?", reply, "R?"]), "c").texts == [*sent.texts, reply, "R?"]


@pytest.mark.parametrize(
    ("api", "more", "field", "reason"),
    [
        ("completions", {"prompt": ["a", "b"]}, "prompt", "is a list"),
        ("completions", {"prompt": [1]}, "prompt", "is a list"),
        ("completions", {}, "prompt", "is missing"),
        ("responses", {}, "input", "is missing"),
        ("responses", {"input": 1}, "input", "is a number"),
        ("responses", {"input": [{"type": "function_call_output"}]}, "input", "no user message"),
        ("responses", {"input": [{"role": "user"}]}, "input[0].content", "is null"),
        ("messages", {"messages": "Q?"}, "messages", "is a string"),
        ("messages", {"system": "S", "messages": [{"role": "user"}]}, "messages[0].content", "is null"),
        ("messages", {"messages": [], "context_blocks": [1]}, "context_blocks[0]", "is a number"),
    ],
)
def test_what_cannot_be_placed_is_named(api: str, more: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        Desk().ask(api, {"context_blocks": ["A"], **more})
    assert (caught.value.status, caught.value.param) == (400, field)
    error = json.loads(caught.value.body(api))
    if api == "messages":
        assert error == {"type": "error", "error": {"type": "invalid_request_error", "message": str(caught.value)}}
    else:
        assert set(error["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("api", "prompt"),
    [
        ("completions", '"prompt": "Q?", "prompt": "R?"'),
        ("responses", '"input": "Q?", "input": "R?"'),
        ("responses", '"input": "Q?", "instructions": "S", "instructions": "T"'),
        ("responses", '"input": [{"role": "user", "content": [{"type": "input_text", "text": "Q", "text": "R"}]}]'),
        ("messages", '"messages": [{"role": "user", "content": "Q?"}], "system": "S", "system": "T"'),
        ("messages", '"messages": [{"role": "user", "role": "assistant", "content": "Q?"}]'),
        ("chat", '"messages": [], "messages": []'),
        ("chat", '"context_blocks": [], "messages": []'),
        ("chat", '"messages": [{"role": "user", "content": "Q?", "content": "R?"}]'),
    ],
)
def test_members_that_we_read_must_stand_once(api: str, prompt: str) -> None:
    call = Call([], f'{{{prompt}, "context_blocks": ["A"]}}'.encode(), API_OF_NAME[api])
    with pytest.raises(RefusedError, match="twice"):
        Desk().app.pipeline.prepare(call)


@pytest.mark.parametrize("api", ALL)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_is_learnt_and_its_tokens_are_counted(api: str, streamed: bool) -> None:
    desk = Desk()
    forward = desk.ask(api, body(api, ["Q?"], ["A"]), "c", None).forward
    observation = desk.app.pipeline.observe(forward, 200, "text/event-stream" if streamed else "application/json", "")
    observation.feed(stream(events(api, "Hel", "lo")) if streamed else json.dumps(answer(api, "Hello")).encode())
    observation.finish()
    text = desk.app.metrics.text().decode()
    assert metric(text, "prefixpilot_prompt_tokens_total", mode="on") == 9
    assert metric(text, "prefixpilot_cached_tokens_total", mode="on") == 4
    assert desk.app._planner.live_requests == 1
    assert len(desk.app._ledger) == (api != "completions")


@pytest.mark.parametrize("api", ALL)
def test_content_begins_when_the_model_has_begun(api: str) -> None:
    told = AnswerObserver(200, "text/event-stream", "", api)
    first, second, third, *rest = events(api, "Hel", "lo")
    told.feed(stream([first, second]))
    assert (told.started, told.reply.compare(Said("Hel"))) == (False, Likeness.UNKNOWN)
    told.feed(stream([third]))
    assert (told.started, told.reply.compare(Said("Hel"))) == (True, Likeness.EQUAL)
    told.feed(stream(rest))
    told.finish()
    assert told.reply.compare(Said("Hello")) is Likeness.EQUAL
    assert told.usage == Usage(9, 4, written_tokens=2 if api == "messages" else None)


@pytest.mark.parametrize(
    ("api", "usage", "expected"),
    [
        ("chat", {"prompt_tokens": 3}, Usage(3, None)),
        ("completions", {"prompt_tokens": 3, "prompt_cache_hit_tokens": 0}, Usage(3, 0)),
        ("responses", {"input_tokens": 3}, Usage(3, None)),
        ("responses", {"input_tokens": 3, "input_tokens_details": None}, Usage(3, None)),
        ("responses", {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}}, Usage(3, 0)),
        ("messages", {"input_tokens": 3}, Usage(3, None)),
        ("messages", {"input_tokens": 3, "cache_read_input_tokens": None}, Usage(3, None)),
        ("messages", {"input_tokens": 3, "cache_read_input_tokens": 0}, Usage(3, 0)),
        ("messages", {"input_tokens": 3, "cache_creation_input_tokens": 2}, Usage(5, None, written_tokens=2)),
        ("messages", {"output_tokens": 3}, None),
        ("messages", {"input_tokens": 0, "output_tokens": 3}, None),
        ("responses", None, None),
    ],
)
def test_what_is_not_reported_is_unknown(api: str, usage: Any, expected: Usage | None) -> None:
    told = AnswerObserver(200, "application/json", "", api)
    told.feed(json.dumps({**answer(api, "ok"), "usage": usage}).encode())
    told.finish()
    assert told.usage == expected


def test_tool_calls_of_streams_are_joined() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    pieces = ['{"x"', ": 1}"]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    anthropic = [
        {"type": "content_block_start", "index": 1, "content_block": use},
        *({"type": "content_block_delta", "index": 1, "delta": delta} for delta in deltas),
    ]
    item = {"type": "function_call", "call_id": "t", "name": "f", "arguments": "".join(pieces)}
    responses = [
        {"type": "response.output_item.added", "output_index": 1, "item": {**item, "arguments": ""}},
        *({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": p} for p in pieces),
        {"type": "response.output_item.done", "output_index": 1, "item": item},
    ]
    for api, documents in (("messages", anthropic), ("responses", responses)):
        told = AnswerObserver(200, "text/event-stream", "", api)
        told.feed(stream(documents))
        for call_id, arguments, likeness in (
            ("t", "{}", Likeness.EQUAL),
            ("", '{"x":1}', Likeness.EQUAL),
            ("u", '{"x":1}', Likeness.HEAD),
            ("", '{"x":2}', Likeness.OTHER),
        ):
            call = {"id": call_id, "function": {"name": "f", "arguments": arguments}}
            assert told.reply.compare(said_in({"tool_calls": [call]})) is likeness


@pytest.mark.parametrize(
    ("api", "document"),
    [
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
        ("responses", {"type": "error", "code": "server_error", "message": "no"}),
        ("responses", {"type": "response.failed", "response": {"error": {"message": "no"}}}),
        ("responses", {"object": "response", "status": "failed", "error": None, "output": [{"type": "reasoning"}]}),
        ("chat", {"error": {"message": "no"}}),
    ],
)
def test_an_error_in_a_stream_is_never_learnt(api: str, document: dict[str, Any]) -> None:
    told = AnswerObserver(200, "text/event-stream", "", api)
    told.feed(stream([document, *events(api, "ok")]))
    told.finish()
    assert not told.started


@pytest.mark.parametrize("api", ALL)
@pytest.mark.parametrize("document", [{}, {"type": 1}, {"choices": [1], "output": 1, "content": 1, "type": "message"}])
def test_odd_documents_are_no_error(api: str, document: dict[str, Any]) -> None:
    told = AnswerObserver(200, "text/event-stream", "", api)
    told.feed(stream([document, {"type": "content_block_start"}, {"type": "response.output_item.done", "item": 1}]))
    told.finish()
    assert told.usage is None
