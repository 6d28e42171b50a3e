"""Why an engine reported another number of cached tokens than was predicted."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Cause(Enum):
    """The likeliest reason for a difference between prediction and report."""

    NONE = "none"
    """There is no difference."""
    SALT_OR_ADAPTER = "salt-or-adapter"
    """The match was made under another cache salt or adapter than the request went out with."""
    ROUTED_ELSEWHERE = "routed-elsewhere"
    """Another rank or replica answered than the one that the prediction was made for."""
    TTL = "ttl"
    """The provider's lifetime of the entry was over, or may have been."""
    RESTARTED = "restarted"
    """The engine began anew after it was known to hold what was counted on."""
    EVICTED = "evicted"
    """The engine removed pages of the prefix around the time of the request."""
    VOLATILE_TEXT = "volatile-text"
    """Text that changes with each request stands where the prompt parts from the one that is cached."""
    TEMPLATE = "template"
    """The engine's chat template, or its tokenizer, made other tokens of it than were predicted with."""
    BELOW_PAGE_SIZE = "below-page-size"
    """What differs is less than a page: only whole pages are cached."""
    EVENTS_LATE = "events-late"
    """What explains it was told after the request had gone out: its events came late, have not come, or the cache has
    changed in between."""
    PICTURE_WRONG = "picture-wrong"
    """The engine has told of the request itself, and what it told of its cache gives another number than it reports."""
    MORE_THAN_KNOWN = "more-than-known"
    """The engine had more than was known of: others send to it as well, or events were missed."""
    UNKNOWN = "unknown"
    """None of these is known to be so."""


class Evidence(NamedTuple):
    """What is known of a request once its answer is there. ``None``: not known.

    Attributes:
        predicted: cached tokens that were predicted.
        reported: cached tokens that the engine reported.
        page_size: tokens in a page, or a provider's increment.
        same_selection: whether salt and adapter of the request are those of the match.
        same_place: whether the rank or replica that answered is the one of the prediction.
        restarted: whether the engine has begun anew since the match was known.
        expired: whether the lifetime of the matched entry was over, or may have been, when the request went out.
        removed_at: tokens in front of the first page of the match that the engine removed after the prediction and
            before the answer; or that was evicted by the model.
        volatile_at: tokens in front of the first volatile text in which the prompt differs from the matched one.
        same_tokens: whether the prompt's tokens, as the engine made them, are those of the prediction.
        told_later: whether what was told after the request had gone out explains the report; or has not come.
        told_otherwise: whether all has been told, and gives another number than the report.
        prompt_tokens: length of the prompt as the engine counted it.
        counted_tokens: its length as it was predicted with.
    """

    predicted: int
    reported: int
    page_size: int = 1
    same_selection: bool | None = None
    same_place: bool | None = None
    restarted: bool | None = None
    expired: bool | None = None
    removed_at: int | None = None
    volatile_at: int | None = None
    same_tokens: bool | None = None
    told_later: bool | None = None
    told_otherwise: bool | None = None
    prompt_tokens: int | None = None
    counted_tokens: int | None = None


def attribute(evidence: Evidence) -> Cause:
    """The cause of a difference: the first of the following that is known and would do. O(1).

    What selects another cache altogether comes first, then what explains the very place at which the hit ended, then
    what only may have played a part.
    """
    if evidence.predicted == evidence.reported:
        return Cause.NONE
    if evidence.reported > evidence.predicted:
        return _of_more(evidence)
    if evidence.same_selection is False:
        return Cause.SALT_OR_ADAPTER
    if evidence.same_place is False:
        return Cause.ROUTED_ELSEWHERE
    if evidence.restarted:
        return Cause.RESTARTED
    if evidence.expired:
        return Cause.TTL
    if ends_at(evidence, evidence.removed_at):
        return Cause.EVICTED
    if evidence.told_later:
        return Cause.EVENTS_LATE
    if ends_at(evidence, evidence.volatile_at):
        return Cause.VOLATILE_TEXT
    if _other_tokens(evidence):
        return Cause.TEMPLATE
    if _within_a_page(evidence):
        return Cause.BELOW_PAGE_SIZE
    return Cause.PICTURE_WRONG if evidence.told_otherwise else Cause.UNKNOWN


def of_prediction(evidence: Evidence, predicted: int) -> Cause:
    """The cause of a difference; where there is none, since just what was counted on was reused, why the prediction was
    another. Never ``NONE`` where ``predicted`` is not what was reported. O(1)."""
    cause = attribute(evidence)
    return attribute(evidence._replace(predicted=predicted)) if cause is Cause.NONE else cause


def _of_more(evidence: Evidence) -> Cause:
    """The engine had more than was expected."""
    if _other_tokens(evidence):
        return Cause.TEMPLATE
    if evidence.told_later:
        return Cause.EVENTS_LATE
    if _within_a_page(evidence):
        return Cause.BELOW_PAGE_SIZE
    return Cause.PICTURE_WRONG if evidence.told_otherwise else Cause.MORE_THAN_KNOWN


def _within_a_page(evidence: Evidence) -> bool:
    return abs(evidence.predicted - evidence.reported) < evidence.page_size


def ends_at(evidence: Evidence, tokens: int | None) -> bool:
    """Whether a change after so many tokens lets the hit end where it did: in the page before it."""
    return tokens is not None and evidence.reported <= tokens < evidence.reported + evidence.page_size


def _other_tokens(evidence: Evidence) -> bool:
    """Whether the prediction was made of another prompt than the engine has computed."""
    lengths = evidence.prompt_tokens, evidence.counted_tokens
    return evidence.same_tokens is False or (None not in lengths and lengths[0] != lengths[1])
