"""Where the blocks of a request's contexts end in its prompt, as the residency of contexts wants it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefixpilot.core import Plan, RequestId
from prefixpilot.proxy.cache.prompts import BlockSpan, EnginePrompt, block_spans, estimated_spans


class Place(NamedTuple):
    """One context of the index in a prompt.

    Attributes:
        request_id: under which the index has it.
        counts_at: for each of its blocks, from how many held tokens of the prompt on it counts as cached.
    """

    request_id: RequestId
    counts_at: tuple[int, ...]


def places_of(plans: Sequence[Plan], prompt: EnginePrompt | None, prompt_tokens: int | None) -> tuple[Place, ...]:
    """The contexts that the plans of a request put into the index, and where they lie. O(bytes of the prompt).

    Later turns of a conversation put none there. Exact where the tokens and their texts are known, else by the plan's
    own lengths.
    """
    found = []
    for plan in plans:
        if plan.turn or not plan.head:
            continue
        spans: tuple[BlockSpan, ...] = ()
        if prompt is not None and prompt.pieces:
            spans = block_spans(plan, prompt)
        elif prompt is not None or prompt_tokens is not None:
            spans = estimated_spans(plan, prompt.tokens if prompt is not None else prompt_tokens or 0)
        if spans:
            found.append(Place(plan.request_id, halfway(spans)))
    return tuple(found)


def halfway(spans: Sequence[BlockSpan]) -> tuple[int, ...]:
    """A block counts while at least half of its tokens are held: in its place no other block would be cached at all.

    >>> halfway([BlockSpan(4, 10), BlockSpan(11, 32)])
    (7, 22)
    """
    return tuple(max(1, (span.start + span.end + 1) // 2) for span in spans)
