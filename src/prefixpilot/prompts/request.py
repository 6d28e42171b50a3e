"""A body that carries context blocks, in any of the APIs: read it, say what text goes where. Pure.

The body is that of the API with one more member, ``context_blocks`` (:mod:`prefixpilot.prompts.blocks`). Their text
goes in front of the newest user message, or of the one prompt of a completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from prefixpilot.apis import API_OF_NAME, APIS, CHAT, Api
from prefixpilot.apis.base import Message, Prompt, digest, prompt_of
from prefixpilot.apis.messages import results_end
from prefixpilot.blocks import text_digest
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import (
    Edit,
    InsertElement,
    JsonText,
    Pointer,
    RemoveMember,
    SetText,
    UnreadableError,
    kind_of,
    written,
)
from prefixpilot.prompts.blocks import FIELD, BlockOf, read_blocks, read_constraints

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
    "previous_response_id",
    "conversation",
    "mcp_servers",
    "output_config",
    "output_format",
    "text",
)
"""Fields that can change what stands before the first block, or which KV pages a prompt may use."""

_SCOPE: Final = frozenset(SCOPE_FIELDS)
_ONCE: Final = ("role", "content", "type", "text", "output")
"""Members of messages, items and parts that must not stand twice."""
_PROMPTS: Final = tuple(dict.fromkeys(member for api in APIS for member in api.members))
"""Members of bodies that hold a prompt, in some API."""

_REMEDIES: Final = {
    "messages": "give a list with a user message; the blocks go in front of its text",
    "input": "give a string, or a list with a user message; the blocks go in front of its text",
    "prompt": "give one prompt as a string; the blocks go in front of it",
}


@dataclass(frozen=True)
class BlocksRequest:
    """A body, read.

    Attributes:
        prompt: without messages if the body has none that can be read (then no blocks).
        blocks: those of ``context_blocks``; may be empty.
        newest_user: index in ``prompt.messages`` of the newest user message; -1 if there is none (then no blocks).
        in_tool_loop: the newest user message stands before the last assistant message, so the engine has had it. Not
            so if that message is the last one, without tool calls, and blocks come with it: then it is the beginning
            of the answer that the client wants (a prefill).
        constraints: what the blocks demand of their order.
    """

    prompt: Prompt
    blocks: tuple[ContextBlock, ...]
    newest_user: int
    in_tool_loop: bool
    constraints: Constraints = UNCONSTRAINED

    @property
    def body(self) -> Mapping[str, Any]:
        """The client's, untouched."""
        return self.prompt.body

    @property
    def api(self) -> Api:
        """Which API it is of."""
        return API_OF_NAME[self.prompt.api]

    @cached_property
    def block_keys(self) -> tuple[bytes, ...]:
        """16 bytes over what is rendered of each block, by position. O(bytes of the blocks) once."""
        return tuple(map(text_digest, self.blocks))

    @cached_property
    def given(self) -> bytes:
        """16 bytes over the blocks and what is demanded of their order; equal for a request that is sent again."""
        keys, demands = b"".join(self.block_keys), self.constraints
        if demands is UNCONSTRAINED:
            return blake2b(keys, digest_size=16).digest()
        return digest([keys.hex(), demands.groups, demands.max_displacement, demands.first, demands.last])

    def scope(self) -> str:
        """Hash over everything before the first block that must be equal for KV reuse; stable across processes."""
        body = self.body
        fields = {name: value for name, value in body.items() if name in _SCOPE}
        if isinstance(body.get("prompt"), dict):  # a template of Responses, which stands in front of all
            fields["prompt"] = body["prompt"]
        head = [message.value for message in self.prompt.messages[: max(self.newest_user, 0)]]
        return digest([self.prompt.api, fields, head, self._frame()]).hex()

    def _frame(self) -> Any:
        """What the newest user message has before its own words."""
        message = self.prompt.messages[self.newest_user].value if self.newest_user >= 0 else None
        if not isinstance(message, dict):
            return None
        frame = {key: value for key, value in message.items() if key != "content"}
        before = results_end(message.get("content")) if self.prompt.api == "messages" else 0
        return [frame, message["content"][:before]] if before else frame

    def labels_in(self, labels: Mapping[bytes, str]) -> tuple[str, ...]:
        """The label of each block, of those by which the prompt has them; by :attr:`block_keys`.

        Raises:
            InvalidRequestError: the prompt does not have a block, and its user message has been sent.
        """
        for i, key in enumerate(self.block_keys):
            if key not in labels:
                raise InvalidRequestError(
                    f"{FIELD}[{i}]",
                    "is new, but the newest user message has been sent already and cannot change in a tool loop",
                    "send new blocks with a new user message, or as the content of a tool message",
                )
        return tuple(map(labels.__getitem__, self.block_keys))

    def edits(self, texts: Mapping[int, str]) -> list[Edit]:
        """Put texts, and a blank line each, in front of messages, by index; take ``context_blocks`` out.

        Raises:
            InvalidRequestError: a message cannot take text.
        """
        edits = [self.api.in_front(self.prompt.messages[i], text) for i, text in texts.items()]
        return [*edits, RemoveMember((), FIELD)] if FIELD in self.body else edits

    def render(self, text: str) -> dict[str, Any]:
        """The body to send: without ``context_blocks``, with ``text`` in front of the newest user message.

        Args:
            text: rendered blocks. Empty text adds nothing.

        Raises:
            InvalidRequestError: the newest user message cannot take text, or there is none.
        """
        if text and self.newest_user < 0:
            raise _no_user_message(self.api)
        return self.render_all({self.newest_user: text} if text else {})

    def render_all(self, texts: Mapping[int, str]) -> dict[str, Any]:
        """The body to send, with texts in front of messages, by index. What is not changed is shared, not copied.

        Raises:
            InvalidRequestError: a message cannot take text.
        """
        body = dict(self.body)
        for edit in self.edits(texts):
            body = _with(body, edit.pointer, edit)
        return body


def parse_request(
    body: Mapping[str, Any], api: Api = CHAT, *, history: bool = False, block_of: BlockOf = ContextBlock
) -> BlocksRequest | None:
    """Read a body. ``None`` if it has no ``context_blocks`` key, so that there is nothing for us to place.

    ``null`` and ``[]`` are no blocks; the key is still taken out. O(messages + blocks).

    Args:
        body: the parsed JSON object.
        history: read it also without the key, because earlier turns may be restored in it; ``None`` then only if it has
            no user message.
        block_of: see :func:`prefixpilot.prompts.blocks.read_blocks`.

    Raises:
        InvalidRequestError: blocks that cannot be used, or that have no user message to go in front of; names the
            element as the client would write it (``context_blocks[2].text``).
    """
    present = FIELD in body
    blocks = read_blocks(body[FIELD], block_of) if present else ()
    read = api.read(body)
    prompt = prompt_of(api.name, body, ()) if read is None else read
    if blocks:
        _check_place(api, read, body)
    elif not present and (not history or prompt.newest_user < 0):
        return None
    prefill = blocks and _is_prefill(prompt)
    in_loop = prompt_of(api.name, body, prompt.messages[:-1]).in_tool_loop if prefill else prompt.in_tool_loop
    constraints = read_constraints(body[FIELD]) if blocks else UNCONSTRAINED
    return BlocksRequest(prompt, blocks, prompt.newest_user, in_loop, constraints)


def check_once(source: JsonText, api: Api) -> None:
    """Whether the members that we read stand once, because parsers differ in which one they take.

    Raises:
        UnreadableError: one of them stands twice; names it.
    """
    for pointer in source.repeats():
        ours = pointer[0] == FIELD or pointer[0] in api.members
        if ours and (len(pointer) == 1 or pointer[-1] in _ONCE):
            raise UnreadableError(f"has the key {written(pointer)} twice")


def misplaced(body: Mapping[str, Any]) -> Pointer | None:
    """Where ``context_blocks`` stands so that nobody reads it, and can only be meant for us. O(messages and parts).

    That is in ``extra_body`` (an argument of the OpenAI SDK, which puts what it holds into the body itself), and in a
    message, an item or a part of one, in which no API has such a member; what is ``null`` or empty loses nothing. What
    is the client's own may have any: metadata, tools, their arguments, texts.
    """
    extra = body.get("extra_body")
    if isinstance(extra, dict) and extra.get(FIELD):
        return "extra_body", FIELD
    for name in _PROMPTS:
        given = body.get(name)
        for i, each in enumerate(given if isinstance(given, list) else ()):
            if type(each) is dict:
                if each.get(FIELD):
                    return name, i, FIELD
                parts = each.get("content")
                for k, part in enumerate(parts if type(parts) is list else ()):
                    if type(part) is dict and part.get(FIELD):
                        return name, i, "content", k, FIELD
    return None


def check_placed(source: JsonText, api: Api) -> None:
    """Whether all blocks stand where they are read.

    Raises:
        InvalidRequestError: some are :func:`misplaced`; names them.
    """
    pointer = misplaced(source.value)
    if pointer is not None:
        remedy = f"put {FIELD} beside {api.members[0]}, as a member of the body itself"
        raise InvalidRequestError(written(pointer), "is not read there", remedy)


def _is_prefill(prompt: Prompt) -> bool:
    last: Message | None = prompt.messages[-1] if prompt.messages else None
    if last is None or last.role != "assistant" or prompt.api == "responses":
        return False
    return not last.calls


def _check_place(api: Api, prompt: Prompt | None, body: Mapping[str, Any]) -> None:
    if prompt is None:
        name = api.members[0]
        reason = f"is {kind_of(body[name])}" if name in body else "is missing"
        raise InvalidRequestError(name, reason, _REMEDIES[name])
    if prompt.newest_user < 0:
        raise _no_user_message(api)
    api.in_front(prompt.messages[prompt.newest_user], "")


def _no_user_message(api: Api) -> InvalidRequestError:
    remedy = "add a message with the role user; the blocks go in front of its text"
    return InvalidRequestError(api.members[0], "holds no user message", remedy)


def _with(value: Any, steps: Iterable[str | int], edit: Edit) -> Any:
    """A copy of ``value`` with an edit done at the end of ``steps``; what is not on the way is shared."""
    steps = tuple(steps)
    if steps:
        copied = dict(value) if isinstance(value, dict) else list(value)
        copied[steps[0]] = _with(value[steps[0]], steps[1:], edit)  # type: ignore[index]
        return copied
    match edit:
        case SetText():
            return edit.text
        case InsertElement():
            return [*value[: edit.at], edit.value, *value[edit.at :]]
        case RemoveMember():
            return {key: each for key, each in value.items() if key != edit.key}
    raise TypeError(f"{edit} is none that puts text in front")
