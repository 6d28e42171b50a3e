"""What an engine held of a prompt when it looked for it in its cache, by what it told afterwards.

A request goes out before all events of earlier requests have come, so what is known then may be old. An engine tells
the pages that it had to compute in the very step in which it looked; so the picture as of the batch before those is the
one that the engine had. Batches that came late tell of earlier requests: a request that was sent once another's answer
had ended was looked up behind all that was told of that one's prompt.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from prefixpilot.proxy.cache.rank import RankView, Run
from prefixpilot.proxy.cache.watch import Look, Rank, Watch
from prefixpilot.residency.base import reported_tokens

REMEMBERED: Final = 256
"""Answered requests whose last batch is remembered, for each cache."""


class _Told(NamedTuple):
    """An answered request: when it ended, and the last batch that told of its prompt."""

    ended: int
    sequence: int


class Looks:
    """Finds the moment at which each request was looked up. Not thread-safe: one owner."""

    def __init__(self) -> None:
        self._told: defaultdict[Rank, deque[_Told]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def find(self, watch: Watch, ranks: Mapping[Rank, RankView], *, last_time: bool = False) -> Look | None:
        """What was held of an answered request's prompt; ``None``: its own events have not come yet, or none at all.

        All that were answered before it went out must have been found, or given up. O(tokens) a rank.

        Args:
            last_time: they are not waited for any longer: what was known when its answer ended counts, or when it
                went out, if that fits the report.
        """
        prompt, reported = watch.prompt, watch.cached_tokens
        assert prompt is not None and reported is not None
        if not ranks:
            return None
        own = self._own(watch, ranks)
        if own is not None:
            return own
        size = 1 if watch.prediction is None else watch.prediction.page_size
        sizes = (view.table.page_size or size for view in ranks.values())  # an engine that began anew has told none yet
        whole = all(_nothing_to_tell(prompt.tokens, reported, size) for size in sizes)
        if not whole and not last_time:
            return None
        looks = [look for rank, view in ranks.items() for look in self._untold(watch, rank, view, missing=not whole)]
        fits = (look for look in looks if look.tokens == reported)
        return next(fits, max(looks[::2], key=lambda look: look.tokens))

    def _untold(self, watch: Watch, rank: Rank, view: RankView, *, missing: bool) -> tuple[Look, Look]:
        """As of the end of its answer, and as of when it went out: it was looked up between the two."""
        assert watch.prompt is not None
        floor = self._floor(rank, watch)
        moments = max(watch.marks_then.get(rank, -1), floor), floor
        held = [view.match(watch.prompt.token_ids, watch.facts, moment).tokens for moment in moments]
        end, start = (Look(rank, self._reported(view, watch, h), told=False, missing=missing) for h in held)
        return end, start

    def _own(self, watch: Watch, ranks: Mapping[Rank, RankView]) -> Look | None:
        """By its own events. Of several ranks that told the same pages, the one that fits the report."""
        found: list[Look] = []
        for rank, view in ranks.items():
            look = self._own_of(watch, rank, view)
            if look is not None:
                found.append(look)
        return next((look for look in found if look.tokens == watch.cached_tokens), found[0] if found else None)

    def _own_of(self, watch: Watch, rank: Rank, view: RankView) -> Look | None:
        prompt, floor = watch.prompt, self._floor(rank, watch)
        assert prompt is not None
        size = view.table.page_size
        whole = prompt.tokens // size if size else 0
        runs = view.runs(prompt.token_ids, watch.facts, floor)
        if all(run.end < whole for run in runs):
            return None
        moments = ((run, self._before(run, watch, view)) for run in _first_of_each(runs))
        began, tokens = next(moments)
        if not watch.alone and tokens != watch.cached_tokens:
            fits = (other for other in moments if other[1] == watch.cached_tokens)
            began, tokens = next(fits, (began, tokens))
        self._told[rank].append(_Told(watch.ended, _completed(runs, began, whole)))
        return Look(rank, tokens, told=True, missing=False)

    def _before(self, run: Run, watch: Watch, view: RankView) -> int:
        assert watch.prompt is not None
        return self._reported(view, watch, view.match(watch.prompt.token_ids, watch.facts, run.sequence - 1).tokens)

    @staticmethod
    def _reported(view: RankView, watch: Watch, held: int) -> int:
        assert watch.prompt is not None
        return reported_tokens(held, watch.prompt.tokens, view.table.page_size or 1)

    def _floor(self, rank: Rank, watch: Watch) -> int:
        """The batch behind which the engine looked, for all that is known."""
        earlier = (told.sequence for told in self._told[rank] if told.ended < watch.sent)
        return max(watch.marks.get(rank, -1), max(earlier, default=-1))


def _first_of_each(runs: tuple[Run, ...]) -> list[Run]:
    """One run of each batch: prompts that are computed in parts are told of in several."""
    return list({run.sequence: run for run in reversed(runs)}.values())[::-1]


def _completed(runs: Sequence[Run], began: Run, whole: int) -> int:
    """The batch that told the last page of a prompt of which ``began`` told the first. What came later may tell of the
    same pages, evicted meanwhile and computed for another request."""
    since = [run for run in runs if run.sequence >= began.sequence]
    return next((run.sequence for run in since if run.end >= whole), since[-1].sequence)


def _nothing_to_tell(prompt_tokens: int, reported: int, page_size: int) -> bool:
    """Whether an engine that took so many tokens from its cache has computed no full page of a prompt.

    vLLM computes and tells the last page again, if the prompt ends with it; SGLang with pages of one token does not.
    """
    return reported >= (prompt_tokens // page_size * page_size if page_size > 1 else prompt_tokens - 1)
