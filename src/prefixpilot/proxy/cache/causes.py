"""What is known of a request that the engine reused less of than could have been: evidence for its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefixpilot.proxy.cache.places import Place
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.rank import RankView
from prefixpilot.proxy.cache.watch import Rank, Watch
from prefixpilot.residency.attribution import Evidence
from prefixpilot.residency.base import reported_tokens


def expected_tokens(watch: Watch, places: Sequence[Place], page_size: int) -> int | None:
    """Cached tokens that were to be: what was predicted, or what the plan was made for if that is more.

    ``None``: neither is known.
    """
    promised = 0
    if watch.prompt is not None and watch.prompt.pieces:  # else places are estimates, and so would be a miss
        promised = max((place.promised for place in places), default=0)
        promised = reported_tokens(promised, watch.prompt.tokens, page_size)
    if watch.prediction is None:
        return promised or None
    return max(promised, watch.prediction.tokens)


def evidence(
    watch: Watch, counted: EnginePrompt | None, places: Sequence[Place], ranks: Mapping[Rank, RankView], page_size: int
) -> Evidence | None:
    """``None`` where nothing was expected or nothing reported. O(tokens), several times where they differ.

    Args:
        counted: the prompt's tokens as they were told, even if the engine counted others.
    """
    expected, reported = expected_tokens(watch, places, page_size), watch.cached_tokens
    if expected is None or reported is None:
        return None
    found = Evidence(
        expected,
        reported,
        page_size,
        prompt_tokens=watch.prompt_tokens,
        counted_tokens=None if counted is None else counted.tokens,
    )
    if expected <= reported:
        return found
    start = max((place.start for place in places), default=0)
    if reported + page_size <= start:
        found = found._replace(volatile_at=reported)
    prompt = watch.prompt
    if watch.prediction is not None and watch.prediction.basis == "model":
        return found._replace(removed_at=reported)  # all that our model knows of a prompt that was cached once
    if prompt is None:
        return found
    views = [(view, watch.marks.get(rank, -1)) for rank, view in ranks.items()]
    if any(view.lost_since(prompt.token_ids, watch.facts, reported, sent_at) for view, sent_at in views):
        found = found._replace(removed_at=reported)
    if any(view.holds_under_another(prompt.token_ids, watch.facts, reported) for view, _ in views):
        found = found._replace(same_selection=False)
    held = [view.match(prompt.token_ids, watch.facts, as_of=sent_at).tokens for view, sent_at in views]
    if (
        len(held) > 1
        and max(held) > reported
        and reported in [reported_tokens(h, prompt.tokens, page_size) for h in held]
    ):
        found = found._replace(same_place=False)
    return found
