"""OpenAI Responses: instructions, and input that is a string or a list of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prefixpilot.apis.base import Message, Pointer, Prompt, Role, ToolCall, prompt_of
from prefixpilot.apis.parts import objects, segments_of, string, text_in_front, texts_of
from prefixpilot.jsontext import Edit

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_ANSWERS: Final = ("_output", "_response")
"""How the types of items end that answer a call (``function_call_output``, ``mcp_approval_response``)."""


class Responses:
    """``POST /v1/responses``. Every item counts as a message.

    What the model or the server made (calls, reasoning, search results, compaction) is an assistant's and has no text
    that could be changed; an item of an unknown type is taken for one of these.
    """

    name = "responses"
    paths = (b"/v1/responses", b"/responses")
    members = ("input", "instructions")

    def read(self, body: Mapping[str, Any]) -> Prompt | None:
        """See :class:`~prefixpilot.apis.base.Api`."""
        given = body.get("input")
        if not isinstance(given, str | list):
            return None
        messages: list[Message] = []
        instructions = body.get("instructions")
        if isinstance(instructions, str):
            messages.append(_text("system", "instructions", instructions, 0))
        if isinstance(given, str):
            messages.append(_text("user", "input", given, len(messages)))
        else:
            first = len(messages)
            messages += [_item(i, value, first + i) for i, value in enumerate(given)]
        return prompt_of(self.name, body, messages, unseen=_refers_to_more(body))

    def in_front(self, message: Message, text: str) -> Edit:
        """See :class:`~prefixpilot.apis.base.Api`."""
        if isinstance(message.value, str):
            return text_in_front(message.value, message.pointer, text)
        return text_in_front(message.value.get("content"), (*message.pointer, "content"), text, "input_text")


def _refers_to_more(body: Mapping[str, Any]) -> bool:
    if body.get("previous_response_id") is not None or body.get("conversation") is not None:
        return True
    return any(item.get("type") == "item_reference" for _, item in objects(body.get("input")))


def _text(role: Role, member: str, text: str, message: int) -> Message:
    return Message(role, (member,), text, segments_of(texts_of(text, (member,)), message, role))


def _item(i: int, value: Any, message: int) -> Message:
    pointer: Pointer = ("input", i)
    if not isinstance(value, dict):
        return Message("tool", pointer, value, ())
    kind = string(value.get("type")) or "message"
    role = _ROLES.get(string(value.get("role")))
    if kind == "message":
        if role is None:
            return Message("tool", pointer, value, ())
        return Message(
            role, pointer, value, segments_of(texts_of(value.get("content"), (*pointer, "content")), message, role)
        )
    if kind.endswith(_ANSWERS):
        texts = texts_of(value.get("output"), (*pointer, "output"))
        return Message(
            "tool", pointer, value, segments_of(texts, message, "tool", call_id=string(value.get("call_id")))
        )
    return Message("assistant", pointer, value, (), _calls(kind, value))


def _calls(kind: str, item: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    if kind not in ("function_call", "custom_tool_call"):
        return ()
    arguments = item.get("arguments", item.get("input"))
    return (ToolCall(string(item.get("call_id")), string(item.get("name")), string(arguments)),)
