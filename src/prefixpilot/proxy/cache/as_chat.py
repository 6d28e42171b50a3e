"""Messages and Responses bodies as chats, to count their tokens: engines have a template for chats only. Pure.

As vLLM turns them into chats before it renders them. Nothing of this is sent to a model. Whatever is not known to be
rendered so makes ``None``; and what an engine renders in another way shows in its count of tokens, and is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_KEPT: Final = ("model", "chat_template_kwargs")
"""Members that shape a prompt and have the same names in a chat."""


class _UnknownShapeError(Exception):
    """Nobody can tell how this is rendered."""


def as_chat(api: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The chat body whose prompt is that of ``body``; ``None``: it cannot be told. O(bytes)."""
    try:
        messages = list(_of_messages(body) if api == "messages" else _of_responses(body))
        tools = [_tool(tool) for tool in body.get("tools") or ()]
    except (_UnknownShapeError, AttributeError, KeyError, TypeError, ValueError):
        return None
    chat = {name: body[name] for name in _KEPT if name in body} | {"messages": messages}
    return {**chat, "tools": tools} if tools else chat


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function, in either API's words. Tools that the provider itself runs are in no template."""
    parameters = tool.get("input_schema", tool.get("parameters"))
    if tool.get("type", "function") not in ("function", "custom") or not isinstance(tool.get("name"), str):
        raise _UnknownShapeError
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": parameters}
    return {"type": "function", "function": function}


def _call(call_id: Any, name: Any, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# -- Messages


def _of_messages(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    system = body.get("system")
    if system:
        yield {"role": "system", "content": system if isinstance(system, str) else "".join(map(_text, system))}
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        content = message["content"]
        if isinstance(content, str):
            yield {"role": message["role"], "content": content}
        else:
            yield from _of_parts(message["role"], content)


def _of_parts(role: str, parts: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of tools first, each a message of its own; then texts and calls as one."""
    said: dict[str, Any] = {"role": role}
    texts = []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            texts.append({"type": "text", "text": _text(part)})
        elif kind == "tool_use":
            call = _call(part.get("id"), part.get("name"), json.dumps(part.get("input") or {}))
            said.setdefault("tool_calls", []).append(call)
        elif kind == "tool_result" and role == "user":
            yield {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _result(part.get("content"))}
        elif kind == "thinking":
            said["reasoning"] = said.get("reasoning", "") + part["thinking"]
        else:
            raise _UnknownShapeError
    if texts:
        said["content"] = texts[0]["text"] if len(texts) == 1 else texts
    if len(said) > 1:
        yield said


def _result(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(map(_text, content))


def _text(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(text, str):
        raise _UnknownShapeError
    return text


# -- Responses


def _of_responses(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Earlier turns that the engine keeps are in no body: of such a request nothing is known."""
    if body.get("previous_response_id") or body.get("conversation") or body.get("prompt"):
        raise _UnknownShapeError
    if body.get("instructions"):
        yield {"role": "system", "content": body["instructions"]}
    given = body.get("input", ())
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    calls: list[dict[str, Any]] = []
    for item in given:
        if item.get("type") == "function_call":
            calls.append(_call(item.get("call_id"), item.get("name"), item["arguments"]))
            continue
        if calls:
            yield {"role": "assistant", "tool_calls": calls}
            calls = []
        yield _item(item)
    if calls:
        yield {"role": "assistant", "tool_calls": calls}


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call_output" and isinstance(item.get("output"), str):
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item["output"]}
    if kind != "message" or not isinstance(item.get("role"), str):
        raise _UnknownShapeError
    content = item.get("content")
    if isinstance(content, str):
        return {"role": item["role"], "content": content}
    texts = [{"type": "text", "text": _text(part)} for part in content or ()]
    return {"role": item["role"], "content": texts[0]["text"] if len(texts) == 1 else texts}
