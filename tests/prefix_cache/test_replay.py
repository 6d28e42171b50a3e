"""Adding up a replay."""

from __future__ import annotations

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import RadixPrefixCache, ReplayResult, Segment, replay


def run(*prompts: str) -> ReplayResult:
    return replay(RadixPrefixCache(None), [[Segment(letter, 10) for letter in p] for p in prompts])


def test_totals() -> None:
    result = run("ab", "ac", "ab")
    assert (result.total_tokens, result.cached_tokens, result.prefilled_tokens) == (60, 30, 30)
    assert result.hit_rate == 0.5
    assert result.evicted_tokens == 0


def test_windows_cover_every_request_once_and_are_even() -> None:
    result = run(*(["ab"] * 47))
    windows = result.windows(20)
    assert len(windows) == 20
    assert [w.first for w in windows] == [sum(w.requests for w in windows[:i]) for i in range(20)]
    assert sum(w.requests for w in windows) == 47
    assert {w.requests for w in windows} == {2, 3}
    assert sum(w.cached_tokens for w in windows) == result.cached_tokens
    assert windows[0].hit_rate == 0.5
    assert windows[1].hit_rate == 1.0


def test_fewer_requests_than_windows() -> None:
    assert [w.requests for w in run("a", "b").windows(20)] == [1, 1]


def test_nothing_to_replay() -> None:
    result = run()
    assert (result.hit_rate, result.windows()) == (0.0, ())


def test_no_windows_are_refused() -> None:
    with pytest.raises(ConfigError, match="windows: is 0"):
        run("a").windows(0)
