"""The nouns: what goes in (blocks, requests) and what comes out (plans). Frozen, without behaviour of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import NamedTuple, NewType, TypeAlias, TypeVar

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.errors import InvalidRequestError

BlockId: TypeAlias = int | str | bytes
"""Identity of a context block: equal ids mean equal bytes in a prompt. See :mod:`prefixpilot.blocks`.

Ids are equal as Python values are: ``1``, ``"1"`` and ``b"1"`` are three blocks."""

RequestId = NewType("RequestId", str)
ConversationId = NewType("ConversationId", str)
TenantId = NewType("TenantId", str)

DEFAULT_TENANT = TenantId("default")

MAX_BLOCK_TOKENS = 1 << 40
"""Of one block: more than any prompt holds, and so little that sums over a million requests are exact."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """A retrieved document, chunk or memory.

    Attributes:
        text: what stands in the prompt; ``None`` if the caller works with ids only.
        id: the caller's name for the block. The identity too, but only where there is no text.
        title: printed beside the label, part of the identity.
        tokens: length in tokens of the engine's tokenizer, if the caller knows it.

    Raises:
        InvalidRequestError: neither ``text`` nor ``id``, a wrong type, or ``tokens`` below 0 or above 2**40.
    """

    text: str | None = None
    id: BlockId | None = None
    title: str | None = None
    tokens: int | None = None
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """Kept by :func:`prefixpilot.blocks.text_digest`: a text is hashed once, whoever asks."""
    _identity: BlockId | None = field(default=None, init=False, repr=False, compare=False)
    """Kept by :func:`prefixpilot.blocks.block_identity`, of the text as it is."""

    def __post_init__(self) -> None:
        if type(self.text) is str and self.id is None and self.title is None and self.tokens is None:
            return  # as most blocks are
        if self.text is None and self.id is None:
            raise InvalidRequestError("ContextBlock", "has neither text nor id", "give at least one of them")
        if self.text is not None and not isinstance(self.text, str):
            raise InvalidRequestError("ContextBlock.text", f"is {type(self.text).__name__}", "give a str")
        if self.id is not None and (not isinstance(self.id, int | str | bytes) or isinstance(self.id, bool)):
            raise InvalidRequestError("ContextBlock.id", f"is {type(self.id).__name__}", "give an int, a str or bytes")
        if self.title is not None and not isinstance(self.title, str):
            raise InvalidRequestError("ContextBlock.title", f"is {type(self.title).__name__}", "give a str")
        if self.tokens is not None and (type(self.tokens) is not int or not 0 <= self.tokens <= MAX_BLOCK_TOKENS):
            wrong = "out of bounds" if type(self.tokens) is int else f"{self.tokens!r}"
            raise InvalidRequestError("ContextBlock.tokens", f"is {wrong}", "give an int from 0 to 2**40")


@dataclass(frozen=True, slots=True)
class Request:
    """The context of one request: its blocks in the retriever's order, most relevant first.

    Attributes:
        blocks: at most as many as fit a prompt; may be empty; duplicates allowed.
        request_id: the id under which the engine will report it as evicted; unique among live requests.
        conversation_id: names the conversation whose earlier turns stand in this prompt; ``None`` stands alone.
        tenant: selects a set of trees; nothing is shared between tenants.
        scope: everything else that must be equal for KV reuse (model, adapter, salt, text before the first block),
            as one string; selects the tree.
        constraints: demands on the order.
    """

    blocks: tuple[ContextBlock, ...]
    request_id: RequestId
    conversation_id: ConversationId | None = None
    tenant: TenantId = DEFAULT_TENANT
    scope: str = ""
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        if not isinstance(self.request_id, str) or not self.request_id:
            raise InvalidRequestError("Request.request_id", f"is {self.request_id!r}", "give a non-empty str")
        if not isinstance(self.scope, str):
            raise InvalidRequestError("Request.scope", f"is {type(self.scope).__name__}", "give a str")
        if not isinstance(self.tenant, str):
            raise InvalidRequestError("Request.tenant", f"is {self.tenant!r}", "give a str")
        if not isinstance(self.conversation_id, str | None):
            raise InvalidRequestError("Request.conversation_id", f"is {self.conversation_id!r}", "give a str, or None")
        if not isinstance(self.blocks, Iterable):
            raise InvalidRequestError("Request.blocks", f"is {type(self.blocks).__name__}", "give a list of blocks")
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for position, block in enumerate(() if set(map(type, self.blocks)) == {ContextBlock} else self.blocks):
            if not isinstance(block, ContextBlock):
                raise InvalidRequestError(
                    f"Request.blocks[{position}]",
                    f"is {type(block).__name__}",
                    "give ContextBlock objects, or use Request.from_ids or Request.from_texts",
                )
        if self.constraints is not UNCONSTRAINED:
            if not isinstance(self.constraints, Constraints):
                raise InvalidRequestError("Request.constraints", f"is {self.constraints!r}", "give Constraints(...)")
            self.constraints.units(len(self.blocks))

    @classmethod
    def from_ids(cls, request_id: str, ids: Iterable[BlockId], conversation_id: str | None = None) -> Request:
        """A request whose blocks are known by id only."""
        blocks = tuple(ContextBlock(id=i) for i in _listed("ids", ids))
        return cls(blocks, RequestId(request_id), _conversation(conversation_id))

    @classmethod
    def from_texts(cls, request_id: str, texts: Iterable[str], conversation_id: str | None = None) -> Request:
        """A request whose blocks are known by their text."""
        blocks = tuple(ContextBlock(text=t) for t in _listed("texts", texts))
        return cls(blocks, RequestId(request_id), _conversation(conversation_id))


def _listed(name: str, values: Iterable[_T]) -> Iterable[_T]:
    """Raises InvalidRequestError for one string, which would be taken letter by letter, and for what is no list."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidRequestError(name, f"is {type(values).__name__}", f"give a list of {name}")
    return values


def _conversation(conversation_id: str | None) -> ConversationId | None:
    return None if conversation_id is None else ConversationId(conversation_id)


class BatchContext(NamedTuple):
    """The context of one request of a batch that is planned together.

    Attributes:
        blocks: distinct; in the retriever's order before planning, in prompt order after it.
        tokens: their lengths, in parallel.
    """

    request_id: RequestId
    blocks: tuple[BlockId, ...]
    tokens: tuple[int, ...]


class Place(Enum):
    """Where the text of a planned block stands in full when its turn in the prompt comes."""

    HERE = "here"
    """Nowhere yet: it stands in its own place."""
    ABOVE = "above"
    """Earlier in the same context."""
    EARLIER = "earlier"
    """In an earlier turn of the conversation."""


class PlannedBlock(NamedTuple):
    """One block of a plan, where it stands in the prompt.

    Attributes:
        block_id: its identity.
        block: what to render. With normalisation this is the first-seen text, not the caller's.
        position: its index in ``Request.blocks``, so its retriever rank.
        label: the name under which the prompt knows it, without brackets: ``Doc 3``.
        location_annotation: stands in the place of the text if that text stands earlier in this prompt; else ``None``.
        tokens: length of the block's text, given or estimated.
    """

    block_id: BlockId
    block: ContextBlock
    position: int
    label: str
    location_annotation: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send for one request.

    Attributes:
        request_id, tenant, scope: those of the request.
        blocks: every block of the request exactly once, in prompt order.
        order_annotation: goes after the blocks and before the question; ``None`` where nothing was moved, or where it
            would only repeat the order of the blocks it names.
        prefix_len: how many leading blocks are predicted to be in the engine's cache.
        predicted_cached_tokens: tokens of those blocks: a prediction by our index, never a measurement. ``None`` is
            unknown: nothing is predicted for later turns, whose history we have not counted.
        turn: how many earlier turns with blocks stand in this prompt. Only turn 0 is ordered and indexed; from the
            second turn on the history is a prefix of its own (paper 6).
        opener: the request of turn 0 of this conversation, on later turns.
        annotation_tokens: length of all its annotations, counted or estimated.
        gain: tokens that ordering these blocks is predicted to save beyond the given order, less its annotation;
            whether or not it was done. Known with ``PilotConfig.gate`` only, and for single first turns.
        templates: the wording that the annotations are in, and that rendering uses.
        first_number: what its counted labels begin with: higher than the conversation has come to where a document has
            such a label in its own text.
    """

    request_id: RequestId
    tenant: TenantId
    scope: str
    blocks: tuple[PlannedBlock, ...]
    order_annotation: str | None = None
    prefix_len: int = 0
    predicted_cached_tokens: int | None = None
    turn: int = 0
    opener: RequestId | None = None
    templates: Templates = field(default=DEFAULT_TEMPLATES, repr=False)
    annotation_tokens: int = 0
    gain: int | None = None
    first_number: int = 1

    @property
    def net_cached_tokens(self) -> int | None:
        """Predicted cached tokens less what the annotations cost; may be negative. ``None`` is unknown."""
        return None if self.predicted_cached_tokens is None else self.predicted_cached_tokens - self.annotation_tokens

    @property
    def order(self) -> tuple[int, ...]:
        """Positions of the request's blocks in prompt order: a permutation of ``range(len(blocks))``."""
        return tuple([b.position for b in self.blocks])

    @property
    def sent(self) -> tuple[BlockId, ...]:
        """Identities of the blocks that stand in full, in prompt order."""
        return tuple([b.block_id for b in self.blocks if b.location_annotation is None])

    @property
    def head(self) -> tuple[PlannedBlock, ...]:
        """The leading blocks, distinct and in full, up to the first annotation or repeat: what a prompt can share."""
        if len({b.block_id for b in self.blocks if b.location_annotation is None}) == len(self.blocks):
            return self.blocks
        head: dict[BlockId, PlannedBlock] = {}
        for block in self.blocks:
            if block.location_annotation is not None or block.block_id in head:
                break
            head[block.block_id] = block
        return tuple(head.values())

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of the i-th block the caller gave, so that citations can be resolved."""
        by_position = sorted(self.blocks, key=attrgetter("position"))
        return tuple([b.label for b in by_position])


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One entry of a schedule: result and request travel together, never paired by place.

    Attributes:
        position: index of the request in the batch as given.
    """

    position: int
    request: Request = field(repr=False)
    plan: Plan
