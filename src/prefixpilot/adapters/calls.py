"""Keyword arguments of a call to a model, planned: what clients that are called in Python have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from prefixpilot.adapters.conversations import Conversations, Prepared
from prefixpilot.apis import Api
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts.blocks import FIELD, Block
from prefixpilot.prompts.request import SCOPE_FIELDS

EXTRA: Final = "extra_body"


class PlannedCall(NamedTuple):
    """A call, ready to be made.

    Attributes:
        arguments: of the call, without ``context_blocks``; what was not changed is the caller's own object.
    """

    arguments: dict[str, Any]
    prepared: Prepared


def plan_call(
    conversations: Conversations,
    api: Api,
    arguments: Mapping[str, Any],
    conversation_id: str | None = None,
    *,
    owner: str = "",
) -> PlannedCall:
    """Plan a call whose arguments are the members of a body of ``api``.

    Blocks are those of ``context_blocks``, there or in ``extra_body``. Messages may be objects with ``model_dump``
    (pydantic) and iterables; they are read as JSON, and sent on as they came. Raises as
    :meth:`~prefixpilot.adapters.Conversations.prepare`.
    """
    sent = dict(arguments)
    given = sent.pop(FIELD, None)
    extra = sent.get(EXTRA)
    if isinstance(extra, Mapping) and FIELD in extra:
        if given is not None:
            raise InvalidRequestError(FIELD, f"is given twice, the second time in {EXTRA}", "give it once")
        given = extra[FIELD]
        sent[EXTRA] = {key: value for key, value in extra.items() if key != FIELD}
    if given is None and conversation_id is None:
        return PlannedCall(sent, Prepared(sent))
    for member in api.members:
        if isinstance(sent.get(member), Iterable) and not isinstance(sent[member], str | list):
            sent[member] = list(sent[member])
    body = {key: plain(sent[key]) for key in (*api.members, *SCOPE_FIELDS) if key in sent and _is_given(sent[key])}
    if isinstance(extra, Mapping):
        body.update({key: plain(extra[key]) for key in SCOPE_FIELDS if key in extra})
    body[FIELD] = [_element(block) for block in given] if _is_listed(given) else given
    prepared = conversations.prepare(body, api, conversation_id, owner=owner)
    for member in api.members:
        if member in body:
            sent[member] = _merged(sent[member], body[member], prepared.body[member])
    return PlannedCall(sent, prepared)


def _is_given(value: Any) -> bool:
    """Not the mark with which an SDK says that an argument was left out."""
    return type(value).__name__ not in ("NotGiven", "Omit")


def _is_listed(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)


def _element(block: Block) -> Any:
    """A block as the member ``context_blocks`` has it. An id in bytes is left out: it is a name only."""
    if not isinstance(block, ContextBlock):
        return plain(block)
    told = {"text": block.text, "title": block.title, "id": None if isinstance(block.id, bytes) else block.id}
    return {key: value for key, value in told.items() if value is not None}


def _merged(own: Any, read: Any, sent: Any) -> Any:
    """The caller's objects where nothing was changed."""
    if not isinstance(sent, list):
        return own if sent is read else sent
    return [mine if new is old else new for mine, old, new in zip(own, read, sent, strict=True)]


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not (a class, a mark for "not given") by the name of its type."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes | type):
        return [plain(each) for each in value]
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
