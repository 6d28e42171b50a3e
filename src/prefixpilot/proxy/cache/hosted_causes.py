"""What is known of a request that a hosted provider read less of than could have been: evidence for its cause. Pure."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from prefixpilot.providers.hosted_cache import DOUBT
from prefixpilot.proxy.cache.watch import Hosting, Prediction, Watch
from prefixpilot.residency.attribution import Evidence

PIECE_TOKENS: Final = 128
"""How finely we tell where two prompts part, where the provider names no increment."""


def hosted_evidence(watch: Watch, prediction: Prediction, hosted: Hosting, reported: int) -> Evidence:
    """Why ``reported`` cached tokens are fewer than there could have been.

    Lengths are estimates until the provider has told them, so that what differs by less than an increment, or an
    eighth, is no difference.
    """
    limits, past = hosted.limits, hosted.past
    page = prediction.page_size if reported else max(prediction.page_size, limits.minimum_tokens or 0)
    front = _volatile_front(watch, hosted, reported)
    elsewhere = hosted.elsewhere if any(plan.predicted_cached_tokens for plan in watch.plans) else 0
    expected = max(prediction.tokens, past.lapsed, past.seen, past.below, front, elsewhere)
    if _much_more(reported, prediction.tokens, page=prediction.page_size):
        expected = prediction.tokens
    elif not _much_more(expected, reported, page=prediction.page_size) and expected != past.below:
        expected = reported
    return Evidence(
        expected,
        reported,
        page,
        same_selection=False if elsewhere == expected > reported else None,
        same_place=False if hosted.busy and past.seen > reported else None,
        expired=_much_more(past.lapsed, reported, page=prediction.page_size) or None,
        removed_at=reported if _much_more(past.seen, reported, page=prediction.page_size) else None,
        volatile_at=reported if front == expected > reported else None,
    )


def _much_more(one: int, other: int, *, page: int) -> bool:
    """Whether ``one`` is more than ``other`` by a page, and by more than estimates are off."""
    return one - other >= page and other < one * (1 - DOUBT)


def _volatile_front(watch: Watch, hosted: Hosting, reported: int) -> int:
    """Tokens of the front that could have been read, but for volatile text behind what was; 0 if that is not so."""
    parting, front = watch.parting, watch.front
    if parting is None or front is None or not parting.volatile or not front.whole:
        return 0
    whole = watch.prompt_tokens or sum(block.tokens for block in hosted.blocks) * hosted.cache.scale
    parted, length = (round(whole * chars / front.whole) for chars in (parting.chars, front.chars))
    readable = front.answered or _ends_within(hosted, length)
    return 0 if not readable or _much_more(reported, parted, page=PIECE_TOKENS) else hosted.limits.cacheable(length)


def _ends_within(hosted: Hosting, front: int) -> bool:
    """Whether an entry can end within the front: else nothing of a first turn is read again in another one."""
    if hosted.limits.everywhere or hosted.limits.shares:
        return True
    ends = accumulate(block.tokens * hosted.cache.scale for block in hosted.blocks)
    marked = (end for end, block in zip(ends, hosted.blocks, strict=True) if block.mark is not None)
    return next(marked, float("inf")) <= front * (1 + DOUBT)
