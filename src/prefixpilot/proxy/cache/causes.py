"""What is known of a request that the engine reused less of than could have been: evidence for its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefixpilot.proxy.cache.places import Place
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.rank import RankView
from prefixpilot.proxy.cache.watch import Facts, Rank, Watch
from prefixpilot.residency.attribution import Evidence, ends_at
from prefixpilot.residency.base import reported_tokens


def expected_tokens(watch: Watch, places: Sequence[Place], page_size: int) -> int | None:
    """Cached tokens that were to be: what was predicted, or what the plan was made for if that is more, or what stands
    in front of the first block if only volatile text in it keeps that from being cached.

    ``None``: neither is known.
    """
    promised = 0
    if watch.prompt is not None and watch.prompt.pieces:  # else places are estimates, and so would be a miss
        promised = max((place.promised for place in places), default=0)
        if volatile_at(watch) is not None:
            promised = max((promised, *(place.start for place in places)))
        promised = reported_tokens(promised, watch.prompt.tokens, page_size)
    if watch.prediction is None:
        return promised or None
    return max(promised, watch.prediction.tokens)


def volatile_at(watch: Watch) -> int | None:
    """Tokens in front of the volatile text in which the prompt differs from those before; ``None``: no such text."""
    return watch.parting.tokens if watch.parting is not None and watch.parting.volatile else None


def evidence_of_another_prompt(watch: Watch) -> Evidence | None:
    """The engine counted another number of tokens than we were told of: its template is not the one that was asked.

    ``None`` if it did not, or if one of the two counts is not known.
    """
    prompt = watch.prompt
    if prompt is None or watch.prompt_tokens in (None, prompt.tokens):
        return None
    predicted, size = (0, 1) if watch.prediction is None else (watch.prediction.tokens, watch.prediction.page_size)
    reported = predicted if watch.cached_tokens is None else watch.cached_tokens
    return Evidence(predicted, reported, size, prompt_tokens=watch.prompt_tokens, counted_tokens=prompt.tokens)


def evidence(watch: Watch, places: Sequence[Place], ranks: Mapping[Rank, RankView], page_size: int) -> Evidence | None:
    """``None`` where nothing was expected or nothing reported. O(tokens), several times where they differ."""
    expected, reported = expected_tokens(watch, places, page_size), watch.cached_tokens
    if expected is None or reported is None:
        return None
    prediction, prompt = watch.prediction, watch.prompt
    views = [(view, watch.marks.get(rank, -1)) for rank, view in ranks.items()]
    found = _with_look(Evidence(expected, reported, page_size, volatile_at=volatile_at(watch)), watch)
    if _told_of_another(watch, views):
        return found._replace(same_tokens=False, told_later=None)
    if expected <= reported:
        return found
    if prediction is not None and prediction.basis == "model":
        right = prediction.tokens <= reported and ends_at(found, found.volatile_at)
        return found if right else found._replace(removed_at=reported)  # all that our model knows of what it once held
    if prompt is None:
        return found
    found = _with_an_emptied_cache(found, views)
    if prediction is not None and prediction.tokens > reported:
        return _of_a_wrong_picture(found, watch, prompt, views)
    return _of_a_wrong_plan(found, prompt, watch.facts, views)


Views = Sequence[tuple[RankView, int]]
"""Caches, and the batch that was known of each when a request went out."""


def _told_of_another(watch: Watch, views: Views) -> bool:
    """The request's own pages were not told, though there must be some; while it was alone, those of a prompt as long
    as it were: the engine's template has made other tokens of it, and as many."""
    prompt, look = watch.prompt, watch.look
    if prompt is None or look is None or not (watch.alone and look.missing):
        return False
    return any(view.told_another(prompt.token_ids, watch.facts, sent_at) for view, sent_at in views)


def _with_an_emptied_cache(found: Evidence, views: Views) -> Evidence:
    """The engine has begun anew, or its cache was cleared, and that was not known yet when the request went out."""
    if any(view.restarted_at >= max(sent_at, 0) for view, sent_at in views):
        return found._replace(restarted=True)
    cleared = any(view.cleared_at > sent_at >= 0 for view, sent_at in views)
    return found._replace(removed_at=found.reported) if cleared else found


def _with_look(found: Evidence, watch: Watch) -> Evidence:
    """What the engine told after the request went out."""
    look, prediction = watch.look, watch.prediction
    if look is None or prediction is None:
        return found
    if look.tokens == found.reported:
        return found._replace(told_later=prediction.tokens != look.tokens)
    return found._replace(told_later=look.missing, told_otherwise=look.told)


def _of_a_wrong_picture(found: Evidence, watch: Watch, prompt: EnginePrompt, views: Views) -> Evidence:
    """Pages were held by all that was known, and yet the engine did not use them."""
    facts = watch.facts
    held = [view.match(prompt.token_ids, facts, as_of=sent_at).tokens for view, sent_at in views]
    if len(held) > 1 and found.reported in [reported_tokens(h, prompt.tokens, found.page_size) for h in held]:
        found = found._replace(same_place=False)
    if watch.alone and found.told_later:
        return found  # nothing else was under way: the pages had gone before, and that was told late
    if any(view.lost_after(prompt.token_ids, facts, found.reported, sent_at) for view, sent_at in views):
        found = found._replace(removed_at=found.reported)
    return found


def _of_a_wrong_plan(found: Evidence, prompt: EnginePrompt, facts: Facts, views: Views) -> Evidence:
    """The picture was right; the plan was made for more than that."""
    if any(view.lost_before(prompt.token_ids, facts, found.reported, sent_at) for view, sent_at in views):
        return found._replace(removed_at=found.reported)
    if any(view.holds_under_another(prompt.token_ids, facts, found.reported) for view, _ in views):
        return found._replace(same_selection=False)
    return found
