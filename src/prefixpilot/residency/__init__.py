"""What the engine's cache holds now: mirrored from its events, or estimated; and what of ours still lies in it."""

from prefixpilot.residency.attribution import Cause, Evidence, attribute
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.contexts import ResidentContexts, Shortened
from prefixpilot.residency.estimated import EstimatedCache, Verdict, token_segments
from prefixpilot.residency.page_records import Applied, PageBounds, PageCounts, PrefixMatch
from prefixpilot.residency.pages import PageTable
from prefixpilot.residency.state import CacheState, StateTracker, worst

__all__ = [
    "Applied",
    "CacheState",
    "Cause",
    "EstimatedCache",
    "Evidence",
    "PageBounds",
    "PageCounts",
    "PageTable",
    "PrefixMatch",
    "ResidentContexts",
    "Shortened",
    "StateTracker",
    "Verdict",
    "attribute",
    "reported_tokens",
    "token_segments",
    "worst",
]
