"""When an engine looked for a prompt: found by its own events, behind what was told of requests before."""

from __future__ import annotations

from collections.abc import Sequence

from prefixpilot.cache_events import CacheCleared
from prefixpilot.proxy.cache.watch import Watch

from .test_view import SIZE, TOKENS, Desk, removed, stored

HEAD = list(range(500, 508))  # two pages
FIRST = [*HEAD, *range(600, 610)]  # four pages and two tokens
SECOND = [*HEAD, *range(700, 710)]


class Line:
    """Requests in the order in which they are sent and answered."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.number = 0
        self.open = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def sent(self, tokens: Sequence[int]) -> Watch:
        watch = self.desk.sent(tokens)
        self.open += 1
        watch.sent, watch.alone = self.next(), self.open == 1
        return watch

    def ended(self, watch: Watch, cached: int) -> Watch:
        assert watch.prompt is not None
        self.open -= 1
        watch.ended, watch.marks_then = self.next(), self.desk.view.marks
        watch.alone = watch.alone and watch.ended == watch.sent + 1
        watch.prompt_tokens, watch.cached_tokens = watch.prompt.tokens, cached
        return watch

    def answered(self, tokens: Sequence[int], cached: int) -> Watch:
        return self.ended(self.sent(tokens), cached)


def found(line: Line, watch: Watch, *, last_time: bool = False) -> tuple[int, bool] | None:
    """What was held, and whether its own events said so."""
    if not line.desk.view.look(watch, last_time=last_time):
        return None
    assert watch.look is not None
    return watch.look.tokens, watch.look.told


def test_as_of_the_batch_before_its_own_pages() -> None:
    line = Line()
    line.desk.batch(stored(HEAD))
    watch = line.answered(FIRST, 8)
    assert found(line, watch) is None
    line.desk.batch(stored(FIRST, 2))
    assert found(line, watch) == (8, True)


def test_what_was_told_late_of_the_request_before_is_not_its_own() -> None:
    """The head came with the first request, whose events come after the second was sent, and even answered."""
    line = Line()
    line.desk.batch(stored(TOKENS))
    first, second = line.answered(FIRST, 0), line.answered(SECOND, 8)
    assert second.prediction is not None and second.prediction.tokens == 0
    line.desk.batch(stored(FIRST))
    assert found(line, first) == (0, True)
    assert found(line, second) is None
    line.desk.batch(stored(SECOND, 2))
    assert found(line, second) == (8, True)


def test_a_removal_that_was_told_late_counts() -> None:
    line = Line()
    line.desk.batch(stored(FIRST))
    other = line.answered([1, 2, 3, 4, 5], 0)
    watch = line.answered(FIRST, 4)
    assert watch.prediction is not None and watch.prediction.tokens == 16
    line.desk.batch(removed(FIRST, 3, 2, 1), stored([1, 2, 3, 4, 5]))
    assert found(line, other) == (0, True)
    line.desk.batch(stored(FIRST, 1))
    assert found(line, watch) == (4, True)


def test_the_same_prompt_computed_again_is_not_the_first_ones_end() -> None:
    """All is told before any of it is looked at: what is between the two is found all the same."""
    line = Line()
    line.desk.batch(stored(TOKENS))
    first, other, again = line.answered(FIRST, 0), line.answered(SECOND, 8), line.answered(FIRST, 8)
    line.desk.batch(stored(FIRST))
    line.desk.batch(removed(FIRST, 3, 2), stored(SECOND, 2))
    line.desk.batch(removed(SECOND, 3, 2), stored(FIRST, 2))
    assert found(line, first) == (0, True)
    assert found(line, other) == (8, True)
    assert found(line, again) == (8, True)


def test_a_prompt_of_which_a_part_is_computed_again_is_whole() -> None:
    line = Line()
    line.desk.batch(stored(TOKENS))
    first, again = line.answered(FIRST, 0), line.sent(FIRST)
    line.desk.batch(stored(FIRST))
    line.desk.batch(removed(FIRST, 3, 2))
    line.desk.batch(stored(FIRST[:12], 2))
    assert found(line, first) == (0, True)
    line.ended(again, 8)
    assert found(line, again) is None
    line.desk.batch(stored(FIRST, 3))
    assert found(line, again) == (8, True)


def test_a_prompt_computed_in_parts_is_told_of_in_several_batches() -> None:
    """Also where the one before was computed in parts, and is told of late."""
    line = Line()
    line.desk.batch(stored(TOKENS))
    first, second = line.answered(FIRST, 0), line.answered(SECOND, 8)
    line.desk.batch(stored(FIRST[:4]))
    assert found(line, first) is None
    line.desk.batch(stored(FIRST[:8], 1))
    line.desk.batch(stored(FIRST, 2))
    assert found(line, first) == (0, True)
    line.desk.batch(stored(SECOND[:12], 2))
    line.desk.batch(stored(SECOND, 3))
    assert found(line, second) == (8, True)


def test_the_same_prompt_again_tells_nothing_and_is_not_waited_for() -> None:
    line = Line()
    line.desk.batch(stored(TOKENS))
    first, again = line.answered(FIRST, 0), line.answered(FIRST, 16)
    line.desk.batch(stored(FIRST))
    assert found(line, first) == (0, True)
    assert found(line, again) == (16, False)


def test_a_prompt_of_whole_pages_tells_its_last_one_again() -> None:
    line = Line()
    line.desk.batch(stored(HEAD))
    watch = line.sent(HEAD)
    line.desk.batch(stored(HEAD, 1))
    assert found(line, line.ended(watch, 4)) == (4, True)


def test_events_that_never_come_are_given_up_as_of_the_end_of_the_answer() -> None:
    line = Line()
    line.desk.batch(stored(HEAD))
    watch = line.answered(FIRST, 4)
    line.desk.batch(removed(HEAD, 1))
    assert found(line, watch) is None
    assert found(line, watch, last_time=True) == (8, False)
    assert watch.look is not None and watch.look.missing
    assert line.desk.view.settle(watch).shown()["cause"] == "events-late"


def test_of_requests_at_once_any_moment_that_fits_is_taken() -> None:
    """Another one stores the head while this one waits for its turn."""
    line = Line()
    line.desk.batch(stored(TOKENS))
    other, watch = line.sent([*HEAD, 9]), line.sent(SECOND)
    line.desk.batch(stored(HEAD))
    line.desk.batch(stored(SECOND, 2))
    line.ended(other, 0)
    assert found(line, line.ended(watch, 8)) == (8, True)
    assert not watch.alone
    finding = line.desk.view.settle(watch)
    assert (finding.verdict, finding.behind) == ("exact", True)
    assert finding.shown()["cause"] == "events-late"


def test_a_picture_that_is_wrong_is_told_from_one_that_is_late() -> None:
    line = Line()
    line.desk.batch(stored(HEAD))
    watch = line.answered(FIRST, 0)
    line.desk.batch(stored(FIRST, 2))
    assert found(line, watch) == (8, True)
    finding = line.desk.view.settle(watch)
    assert (finding.predicted, finding.verdict, finding.behind) == (8, "off", False)
    assert finding.shown()["cause"] == "picture-wrong"


def test_the_rank_that_tells_of_it_is_the_one_that_looked() -> None:
    line = Line()
    line.desk.batch(stored(FIRST), rank=0)
    line.desk.batch(stored(HEAD[:4]), rank=1)
    watch = line.answered(FIRST, 4)
    line.desk.batch(stored(FIRST, 1), rank=1)
    assert found(line, watch) == (4, True)
    assert watch.look is not None and watch.look.rank.rank == 1
    finding = line.desk.view.settle(watch)
    assert (finding.verdict, finding.shown()["cause"]) == ("exact", "routed-elsewhere")


def test_an_engine_that_begins_anew_between_sending_and_answer_is_followed_on() -> None:
    line = Line()
    for _ in range(3):
        line.desk.batch(stored(FIRST))
    watch = line.sent(FIRST)
    line.desk.batch(CacheCleared(), stored(FIRST), sequence=0)
    assert found(line, line.ended(watch, 0)) == (0, True)
    again = line.answered(SECOND, 8)
    line.desk.batch(stored(SECOND, 2))
    assert found(line, again) == (8, True)


def test_pages_told_one_by_one_are_put_together() -> None:
    line = Line()
    line.desk.batch(stored(HEAD))
    watch = line.answered(FIRST, 8)
    line.desk.batch(stored(FIRST[:12], 2), stored(FIRST, 3))
    assert found(line, watch) == (8, True)
    (view,) = line.desk.view._ranks.values()
    assert watch.prompt is not None
    assert [(run.start, run.end) for run in view.runs(watch.prompt.token_ids, watch.facts, 0)] == [(2, 4)]
    assert SIZE == 4


def test_another_size_of_pages_after_a_restart() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    bigger = stored(TOKENS[:12])._replace(page_size=6, pages=stored(TOKENS).pages[:2])
    desk.batch(CacheCleared(), bigger, sequence=0)
    assert desk.view.sizes().page_size == 6
    assert desk.predicted(TOKENS) == 12
