"""Context blocks in the body of a chat request: read them, put rendered text in their place. Pure.

A chat body is that of OpenAI's ``POST /v1/chat/completions`` with one more key, ``context_blocks``: a list of strings
or of objects with ``text`` and optional ``id`` and ``title``, the most relevant first. ``group`` (a name; its blocks
stand next to each other) and ``pin`` (``first`` or ``last``) say what may not be moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError

FIELD: Final = "context_blocks"

SCOPE_FIELDS: Final = (
    "model",
    "lora",
    "lora_name",
    "lora_path",
    "lora_request",
    "adapter",
    "adapter_id",
    "cache_salt",
    "extra_key",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "enable_thinking",
    "add_special_tokens",
    "mm_processor_kwargs",
)
"""Fields that can change what stands before the first block, or which KV pages a prompt may use."""

_NOTHING_FROZEN: Final[Mapping[int, Any]] = MappingProxyType({})
_BLOCK_KEYS: Final = ("text", "id", "title", "group", "pin")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat body, read.

    Attributes:
        body: the client's, untouched.
        blocks: those of ``context_blocks``; may be empty.
        newest_user: index in ``body["messages"]`` of the newest user message; -1 if there is none (then no blocks).
        in_tool_loop: the newest user message stands before the last assistant message, so the engine has had it. Not
            so if that message is the last one, without tool calls, and blocks come with it: then it is the beginning
            of the answer that the client wants (a prefill).
        constraints: what the blocks demand of their order.
    """

    body: Mapping[str, Any]
    blocks: tuple[ContextBlock, ...]
    newest_user: int
    in_tool_loop: bool
    constraints: Constraints = UNCONSTRAINED

    @property
    def messages(self) -> Sequence[Any]:
        """The client's messages; empty if the body has no list of them."""
        messages = self.body.get("messages")
        return messages if isinstance(messages, list) else ()

    def scope(self) -> str:
        """Hash over everything before the first block that must be equal for KV reuse; stable across processes."""
        fields = {name: self.body[name] for name in SCOPE_FIELDS if name in self.body}
        head = list(self.messages[: max(self.newest_user, 0)])
        frame = {}
        if self.newest_user >= 0:
            frame = {key: value for key, value in self.messages[self.newest_user].items() if key != "content"}
        return digest([fields, head, frame]).hex()

    def render(self, text: str, frozen: Mapping[int, Any] = _NOTHING_FROZEN) -> dict[str, Any]:
        """The body to send: without ``context_blocks``, with ``text`` in front of the newest user message.

        Args:
            text: rendered blocks; a blank line follows it. Empty text adds nothing.
            frozen: content to put in the place of a message's content, by index in ``messages``.

        Raises:
            InvalidRequestError: the content of the newest user message cannot take text.
        """
        contents = dict(frozen)
        if text:
            if self.newest_user < 0:
                raise _no_user_message()
            given = self.messages[self.newest_user].get("content")
            contents[self.newest_user] = text_in_front(
                text, contents.get(self.newest_user, given), f"messages[{self.newest_user}].content"
            )
        body = {key: value for key, value in self.body.items() if key != FIELD}
        if contents:
            body["messages"] = [
                {**message, "content": contents[i]} if i in contents else message
                for i, message in enumerate(self.messages)
            ]
        return body


def parse_chat(body: Mapping[str, Any], *, history: bool = False) -> ChatRequest | None:
    """Read a chat body. ``None`` if it has no ``context_blocks`` key, so that there is nothing for us to place.

    ``null`` and ``[]`` are no blocks; the key is still removed by :meth:`ChatRequest.render`. O(messages + blocks).

    Args:
        body: the parsed JSON object.
        history: read it also without the key, because earlier turns may be restored in it; ``None`` then only if it has
            no user message.

    Raises:
        InvalidRequestError: blocks that cannot be used, or that have no user message to go in front of; names the
            element as the client would write it (``context_blocks[2].text``).
    """
    present = FIELD in body
    blocks = _blocks(body[FIELD]) if present else ()
    roles = _roles(body.get("messages"))
    newest_user = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
    answered = roles[:-1] if blocks and _is_prefill(body, roles) else roles
    last_assistant = max((i for i, role in enumerate(answered) if role == "assistant"), default=-1)
    if blocks:
        _check_place(body, newest_user)
    elif not present and (not history or newest_user < 0):
        return None
    constraints = _constraints(body[FIELD]) if blocks else UNCONSTRAINED
    return ChatRequest(body, blocks, newest_user, 0 <= newest_user < last_assistant, constraints)


def plain_text(blocks: Iterable[ContextBlock], first_number: int = 1) -> str:
    """The blocks in the given order, all in full, labelled from ``first_number``: what is sent when all else fails.

    >>> print(plain_text([ContextBlock("Rome is in Italy."), ContextBlock("It is old.", title="Age")]))
    [Doc 1]
    Rome is in Italy.
    <BLANKLINE>
    [Doc 2] Age
    It is old.
    """
    paragraphs = []
    for number, block in enumerate(blocks, first_number):
        label = DEFAULT_TEMPLATES.label.format(name=DEFAULT_TEMPLATES.name.format(number=number))
        head = f"{label} {block.title}" if block.title else label
        paragraphs.append(f"{head}\n{block.text if block.text is not None else str(block.id)}")
    return "\n\n".join(paragraphs)


def text_in_front(text: str, content: Any, field: str) -> Any:
    """Message content with ``text`` and a blank line in front of it; of content parts, one more text part.

    Raises:
        InvalidRequestError: the content is neither a string nor a list; names ``field``.
    """
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    if isinstance(content, list):
        return [{"type": "text", "text": f"{text}\n\n"}, *content]
    raise InvalidRequestError(
        field,
        f"is {_kind(content)}, so the context blocks cannot be put in front of it",
        "give a string or a list of content parts",
    )


def digest(value: Any) -> bytes:
    """16 bytes over a JSON value, equal for equal values in every process (sorted keys, ASCII, blake2b)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(canonical.encode("ascii"), digest_size=16).digest()


def _roles(messages: Any) -> list[Any]:
    if not isinstance(messages, list):
        return []
    return [message.get("role") if isinstance(message, dict) else None for message in messages]


def _is_prefill(body: Mapping[str, Any], roles: Sequence[Any]) -> bool:
    if not roles or roles[-1] != "assistant":
        return False
    message = body["messages"][-1]
    return not (message.get("tool_calls") or message.get("function_call"))


def _check_place(body: Mapping[str, Any], newest_user: int) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list):
        reason = "is missing" if "messages" not in body else f"is {_kind(messages)}"
        raise InvalidRequestError(
            "messages", reason, "give a list with a user message; the blocks go in front of its text"
        )
    if newest_user < 0:
        raise _no_user_message()
    text_in_front("", messages[newest_user].get("content"), f"messages[{newest_user}].content")


def _no_user_message() -> InvalidRequestError:
    remedy = "add a message with the role user; the blocks go in front of its text"
    return InvalidRequestError("messages", "holds no user message", remedy)


def _blocks(given: Any) -> tuple[ContextBlock, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequestError(FIELD, f"is {_kind(given)}", "give a list of strings or of objects with text")
    return tuple(_block(f"{FIELD}[{i}]", element) for i, element in enumerate(given))


def _block(field: str, element: Any) -> ContextBlock:
    if isinstance(element, str):
        return ContextBlock(text=_text(field, element))
    if not isinstance(element, dict):
        raise InvalidRequestError(field, f"is {_kind(element)}", "give a string, or an object with text")
    for key in element:
        if key not in _BLOCK_KEYS:
            raise InvalidRequestError(f"{field}.{key}", "is not a known key", f"use only {', '.join(_BLOCK_KEYS)}")
    if "text" not in element:
        raise InvalidRequestError(f"{field}.text", "is missing", "give the block's text as a string")
    return ContextBlock(
        text=_text(f"{field}.text", element["text"]), id=_id(field, element), title=_title(field, element)
    )


def _constraints(elements: Sequence[Any]) -> Constraints:
    """What the elements say of their order; each is a block that can be used."""
    groups: dict[str, list[int]] = {}
    pins: dict[str, int] = {}
    for i, element in enumerate(elements):
        if not isinstance(element, dict):
            continue
        name, pin = element.get("group"), element.get("pin")
        if name is not None:
            _add_to_group(f"{FIELD}[{i}].group", groups, name, i)
        if pin is not None:
            _add_pin(f"{FIELD}[{i}].pin", pins, pin, i)
    if not groups and not pins:
        return UNCONSTRAINED
    constraints = Constraints(tuple(map(tuple, groups.values())), None, pins.get("first"), pins.get("last"))
    try:
        constraints.units(len(elements))
    except InvalidRequestError as error:
        pinned = pins[error.field.rpartition(".")[2]]
        raise InvalidRequestError(f"{FIELD}[{pinned}].pin", error.reason, error.remedy) from None
    return constraints


def _add_to_group(field: str, groups: dict[str, list[int]], name: Any, position: int) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(field, f"is {_kind(name) if name != '' else 'empty'}", "give a name, or leave it out")
    members = groups.setdefault(name, [])
    if members and members[-1] != position - 1:
        raise InvalidRequestError(
            field,
            f"is {name!r}, as that of {FIELD}[{members[-1]}], which does not stand right before it",
            "put the blocks of a group next to each other, in the order in which they are to stand",
        )
    members.append(position)


def _add_pin(field: str, pins: dict[str, int], pin: Any, position: int) -> None:
    if pin not in ("first", "last"):
        raise InvalidRequestError(field, f"is {json.dumps(pin)}", 'give "first" or "last", or leave it out')
    if pins.setdefault(pin, position) != position:
        raise InvalidRequestError(field, f"is {pin!r}, as that of {FIELD}[{pins[pin]}]", "pin one block to each end")


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(field, f"is {_kind(value)}", "give the block's text as a string")
    if not value:
        raise InvalidRequestError(field, "is empty", "give the block's text, or leave the element out")
    return value


def _id(field: str, element: Mapping[str, Any]) -> int | str | None:
    value = element.get("id")
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise InvalidRequestError(f"{field}.id", f"is {_kind(value)}", "give a string or an integer, or leave it out")
    return value


def _title(field: str, element: Mapping[str, Any]) -> str | None:
    value = element.get("title")
    if not isinstance(value, str | None):
        raise InvalidRequestError(f"{field}.title", f"is {_kind(value)}", "give a string, or leave it out")
    return value or None


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    """The JSON name of a value's type."""
    return _KINDS.get(type(value), type(value).__name__)
