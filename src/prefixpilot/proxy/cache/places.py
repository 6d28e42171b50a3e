"""Where the contexts of a request lie in its prompt, in tokens, and how much of it the plan took to be cached. Pure."""

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
        start: tokens in front of its first block.
        promised: tokens of the prompt up to the end of the blocks that the index took to be cached; 0 for none.
    """

    request_id: RequestId
    counts_at: tuple[int, ...]
    start: int
    promised: int


def places_of(plans: Sequence[Plan], prompt: EnginePrompt | None, prompt_tokens: int | None) -> tuple[Place, ...]:
    """The contexts that the plans of a request put into the index, and where they lie. O(bytes of the prompt).

    Later turns of a conversation put none there. Exact where the tokens and their texts are known, else by the plan's
    own lengths.
    """
    found = []
    for plan in plans:
        spans = _spans(plan, prompt, prompt_tokens) if not plan.turn and plan.head else ()
        if spans:
            cached = min(plan.prefix_len, len(spans)) if plan.predicted_cached_tokens else 0
            promised = spans[cached - 1].end if cached else 0
            found.append(Place(plan.request_id, halfway(spans), spans[0].start, promised))
    return tuple(found)


def _spans(plan: Plan, prompt: EnginePrompt | None, prompt_tokens: int | None) -> tuple[BlockSpan, ...]:
    if prompt is not None and prompt.pieces:
        return block_spans(plan, prompt)
    if prompt is None and prompt_tokens is None:
        return ()
    return estimated_spans(plan, prompt.tokens if prompt is not None else prompt_tokens or 0)


def halfway(spans: Sequence[BlockSpan]) -> tuple[int, ...]:
    """A block counts while at least half of its tokens are held: in its place no other block would be cached at all.

    >>> halfway([BlockSpan(4, 10), BlockSpan(11, 32)])
    (7, 22)
    """
    return tuple(max(1, (span.start + span.end + 1) // 2) for span in spans)
