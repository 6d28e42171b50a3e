"""The simulated engine in the APIs beside chat: prompts, bounds, refusals and the order of events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.testing import SimulatedCall, SimulatedReply
from prefixpilot.testing.chat_wire import BadChatError
from prefixpilot.testing.messages_wire import MessagesWire
from prefixpilot.testing.openai_wire import ChatWire, CompletionsWire
from prefixpilot.testing.responses_wire import ResponsesWire
from prefixpilot.testing.wires import Wire, say

RESULT = {"type": "tool_result", "content": "42"}
REPLY = SimulatedReply("one two", "hm", (SimulatedCall("c", "f", '{"x": 1}'),))
CHAT = {"messages": [{"role": "user", "content": "Q?"}]}
BODIES: list[tuple[Wire, dict[str, Any]]] = [
    (ChatWire(), CHAT),
    (CompletionsWire(), {"prompt": "Q?"}),
    (ResponsesWire(), {"input": "Q?"}),
    (MessagesWire(), CHAT),
]


def types(events: list[bytes]) -> list[str]:
    return [json.loads(event.split(b"data: ")[1])["type"] for event in events]


@pytest.mark.parametrize(
    ("wire", "body", "prompt"),
    [
        (CompletionsWire(), {"prompt": "Q?"}, "Q?"),
        (ResponsesWire(), {"input": "Q?", "instructions": "S"}, "<|system|>\nS\n<|user|>\nQ?\n<|assistant|>\n"),
        (
            ResponsesWire(),
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "Q?"}, {"type": "input_image"}]},
                    {"type": "function_call", "call_id": "c", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "42"},
                ]
            },
            "<|system|>\n\n<|user|>\nQ?\n<|assistant|>\n{}\n<|tool|>\n42\n<|assistant|>\n",
        ),
        (
            MessagesWire(),
            {
                "system": [{"type": "text", "text": "S"}],
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "input": {"x": 1}}]},
                    {"role": "user", "content": [RESULT, {"type": "text", "text": "Q"}]},
                ],
            },
            '<|system|>\nS\n<|assistant|>\n{"x": 1}\n<|user|>\n42Q\n<|assistant|>\n',
        ),
    ],
)
def test_prompts(wire: Wire, body: dict[str, Any], prompt: str) -> None:
    assert wire.read(body).prompt == prompt


@pytest.mark.parametrize(("wire", "body"), BODIES)
@pytest.mark.parametrize("salt", [{"cache_salt": "x"}, {"model": "other"}])
def test_what_isolates_caches(wire: Wire, body: dict[str, Any], salt: dict[str, Any]) -> None:
    assert wire.read(body).scope != wire.read({**body, **salt}).scope


@pytest.mark.parametrize(
    ("wire", "body", "reason"),
    [
        (CompletionsWire(), {"prompt": ["Q?"]}, "must be a string"),
        (ResponsesWire(), {}, "must be a string or a list"),
        (ResponsesWire(), {"input": ["Q?"]}, "must be an object"),
        (MessagesWire(), {"messages": []}, "non-empty"),
        (MessagesWire(), {"messages": [{"role": "system", "content": "S"}]}, "role user or assistant"),
        (MessagesWire(), {"messages": [{"role": "user"}]}, "string or a list"),
        (MessagesWire(), {"messages": [{"role": "user", "content": [{"type": "text"}, RESULT]}]}, "must come first"),
    ],
)
def test_refusals(wire: Wire, body: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadChatError, match=reason) as caught:
        wire.read(body)
    error = json.loads(wire.error_body(str(caught.value)))
    assert error["error"]["message"] == str(caught.value)
    assert (error.get("type") == "error") == isinstance(wire, MessagesWire)


@pytest.mark.parametrize(("wire", "body"), BODIES)
def test_a_bound_cuts_the_text(wire: Wire, body: dict[str, Any]) -> None:
    limit = "max_output_tokens" if isinstance(wire, ResponsesWire) else "max_tokens"
    for bound, text in ((1, "one"), (9, "one two")):
        said = say(wire.read({**body, limit: bound}), 0, "one two", 7, 4)
        assert (said.text, said.cut) == (text, bound == 1)
        whole = wire.whole(said).decode()
        assert f'"{text}"' in whole
        cut = [word in whole for word in ('"length"', '"incomplete"', '"max_tokens"')]
        assert any(cut) == (bound == 1)


def test_the_events_of_a_response_stand_in_order() -> None:
    wire = ResponsesWire()
    said = say(wire.read({"input": "Q?"}), 0, REPLY, 7, 4)
    item = ["response.output_item.added", "response.output_item.done"]
    assert types(list(wire.begin(said))) == [
        "response.created",
        *item,
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types(list(wire.end(said))) == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    usage = json.loads(wire.whole(said))["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (7, 4)


def test_the_events_of_a_message_stand_in_order() -> None:
    wire = MessagesWire()
    said = say(wire.read(CHAT), 0, REPLY, 7, 4)
    block = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert types(list(wire.begin(said))) == ["message_start", *block, "content_block_start", "ping"]
    assert types(list(wire.end(said))) == ["content_block_stop", *block, "message_delta", "message_stop"]
    usage = json.loads(wire.whole(said))["usage"]
    parts = [usage[f"{name}input_tokens"] for name in ("", "cache_read_", "cache_creation_")]
    assert (sum(parts), parts[1]) == (7, 4)
