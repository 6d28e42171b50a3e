"""A hosted provider's cache: marks and their lookback, automatic prefixes, lifetimes, and corrections."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.providers.hosted_cache import HostedBlock, HostedCache, HostedPrediction
from prefixpilot.providers.limits import CacheLimits, builtin_limits


def limits(provider: str, model: str) -> CacheLimits:
    found = builtin_limits().of(provider, model)
    assert found is not None
    return found


CLAUDE = limits("anthropic", "claude-opus-4-1")
GPT = limits("openai", "gpt-4o")
DEEPSEEK = limits("deepseek", "deepseek-chat")


def blocks(text: str, tokens: int = 1000, marks: str = "") -> list[HostedBlock]:
    """One block a letter; those in ``marks`` carry one."""
    return [HostedBlock(letter.encode(), tokens, "5m" if letter in marks else None) for letter in text]


def asked(cache: HostedCache, prompt: list[HostedBlock], now: float) -> HostedPrediction:
    """Send and answer as predicted."""
    prediction = cache.send(prompt, now)
    cache.observe(prompt, prediction.tokens)
    cache.check_invariants()
    return prediction


def test_an_entry_stands_at_a_mark() -> None:
    cache = HostedCache(CLAUDE)
    prompt = blocks("abcdef", marks="d")
    assert cache.send(prompt, 0.0) == (0, "cold")
    assert cache.predict(prompt, 1.0) == (0, "pending")
    cache.observe(prompt, 0, written_tokens=4000)
    assert cache.predict(prompt, 1.0) == (4000, "cached")
    assert cache.predict(blocks("abcdxx", marks="x"), 1.0) == (4000, "cached")
    assert cache.predict(blocks("abcd"), 1.0) == (0, "cold")
    assert cache.predict(blocks("abc", marks="c"), 1.0) == (0, "cold")


def test_a_mark_looks_back_twenty_blocks_itself_included() -> None:
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("a", 5000, marks="a"), 0.0)
    for behind, found in ((19, 5000), (20, 0)):
        tail = [HostedBlock(bytes([n]), 10, "5m" if n == behind - 1 else None) for n in range(behind)]
        assert cache.predict([*blocks("a", 5000), *tail], 1.0).tokens == found


def test_a_hit_refreshes_and_time_ends_it() -> None:
    cache = HostedCache(CLAUDE)
    prompt = blocks("abcde", marks="e")
    asked(cache, prompt, 0.0)
    assert asked(cache, prompt, 299.0) == (5000, "cached")
    assert cache.predict(prompt, 598.0) == (5000, "cached")
    assert cache.predict(prompt, 599.0) == (0, "cold")


def test_an_entry_that_is_found_by_looking_back_is_refreshed() -> None:
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("abcde", marks="e"), 0.0)
    asked(cache, blocks("abcdefg", marks="g"), 200.0)
    assert cache.predict(blocks("abcde", marks="e"), 400.0) == (5000, "cached")


def test_below_the_minimum_nothing_is_held() -> None:
    assert CLAUDE.minimum_tokens is not None and CLAUDE.minimum_tokens > 100
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("ab", 10, marks="ab"), 0.0)
    assert len(cache) == 0


def test_automatic_caches_hold_every_prefix_in_increments() -> None:
    cache = HostedCache(GPT)
    asked(cache, blocks("abc"), 0.0)
    prediction = cache.predict(blocks("abx"), 1.0)
    assert GPT.increment_tokens == 128
    assert prediction == (2000 // 128 * 128, "cached")
    assert cache.predict(blocks("a"), 1.0).tokens == 0
    assert cache.predict(blocks("abc"), 1_000.0).state == "unknown"
    assert cache.predict(blocks("abc"), 100_000.0).state == "cold"


def test_a_report_of_nothing_read_and_nothing_written_forgets() -> None:
    cache = HostedCache(CLAUDE)
    prompt = blocks("abcde", marks="ce")
    asked(cache, prompt, 0.0)
    cache.send(prompt, 1.0)
    cache.observe(prompt, 0, written_tokens=0)
    assert (cache.predict(prompt, 2.0), len(cache)) == ((0, "cold"), 0)


def test_a_miss_forgets_what_the_request_did_not_write_again() -> None:
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("abcde", marks="e"), 0.0)
    longer = blocks("abcdef", marks="f")
    assert cache.send(longer, 1.0).tokens == 5000
    cache.observe(longer, 0, written_tokens=6000)
    assert cache.predict(blocks("abcde", marks="e"), 2.0) == (0, "cold")
    assert cache.predict(longer, 2.0) == (6000, "cached")


def test_a_failed_request_leaves_nothing_behind() -> None:
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("abcde", marks="e"), 0.0)
    longer = blocks("abcdef", marks="ef")
    cache.send(longer, 1.0)
    cache.failed(longer, 2.0)
    assert cache.predict(longer, 3.0) == (5000, "cached")


def test_a_unit_is_read_whole_and_what_two_prompts_share_becomes_one() -> None:
    cache = HostedCache(DEEPSEEK)
    assert asked(cache, blocks("abc"), 0.0).tokens == 0
    assert asked(cache, blocks("abcd"), 1.0) == (3000, "unknown")
    assert asked(cache, blocks("abx"), 2.0).tokens == 0
    assert asked(cache, blocks("aby"), 3.0).tokens == 2000


def test_an_implicit_mark_is_found_however_far_it_lies_back() -> None:
    cache = HostedCache(limits("openai", "gpt-5.6"))
    asked(cache, [HostedBlock(b"front", 1500), HostedBlock(b"q", 9, "30m")], 0.0)
    tail = [HostedBlock(bytes([n]), 10) for n in range(90)]
    longer = [HostedBlock(b"front", 1500), HostedBlock(b"q", 9), *tail, HostedBlock(b"end", 9, "30m")]
    assert cache.predict(longer, 1.0) == (1509, "cached")
    assert cache.predict([HostedBlock(b"front", 1500), HostedBlock(b"r", 9, "30m")], 1.0) == (0, "cold")


def test_the_providers_counts_correct_estimates() -> None:
    cache = HostedCache(CLAUDE)
    prompt = blocks("abcdef", marks="d")
    cache.send(prompt, 0.0)
    cache.observe(prompt, 0, written_tokens=4440, prompt_tokens=6600)
    assert cache.scale == pytest.approx(1.1)
    assert cache.predict(prompt, 1.0).tokens == 4440, "the length of a prefix that it told is exact"
    assert cache.predict(blocks("abcdxy", marks="y"), 1.0).tokens == 4440
    gpt = HostedCache(GPT)
    gpt.send(blocks("abc"), 0.0)
    gpt.observe(blocks("abc"), 0, prompt_tokens=3333)
    assert gpt.predict(blocks("abcd"), 1.0).tokens == 3333 // 128 * 128
    assert gpt.predict(blocks("ab"), 1.0).tokens == 2222 // 128 * 128


def test_an_estimate_that_is_a_little_long_contradicts_no_report() -> None:
    cache = HostedCache(CLAUDE)
    asked(cache, blocks("abcd", marks="d"), 0.0)
    longer = blocks("abcdef", marks="f")
    cache.send(longer, 1.0)
    cache.observe(longer, 3800, written_tokens=1900)
    assert cache.predict(blocks("abcd", marks="d"), 2.0).state == "cached"


def test_what_became_of_what_was_sent() -> None:
    cache = HostedCache(CLAUDE)
    prompt = blocks("abcde", marks="e")
    assert cache.past(prompt, 0.0) == (0, 0, 0)
    cache.send(prompt, 0.0)
    assert cache.past(prompt, 1.0) == (0, 0, 0), "sent, and nothing said yet"
    cache.observe(prompt, 0, written_tokens=5000)
    assert cache.past(prompt, 1.0) == (0, 5000, 0)
    assert cache.past(prompt, 301.0) == (5000, 0, 0)
    cache.send(blocks("v", 400, marks="v"), 1.0)
    assert cache.past(blocks("vw", 400, marks="w"), 2.0) == (0, 0, 400)
    unpublished = HostedCache(DEEPSEEK)
    asked(unpublished, blocks("ab"), 0.0)
    assert unpublished.past(blocks("ab"), 1e9).lapsed == 0, "no lifetime is published, so none is over"


def test_scopes_are_apart() -> None:
    one, other = HostedCache(CLAUDE, b"one"), HostedCache(CLAUDE, b"other")
    assert one._places(blocks("a"))[0].prefix != other._places(blocks("a"))[0].prefix


def test_wrong_values_are_named() -> None:
    cache = HostedCache(CLAUDE)
    with pytest.raises(ConfigError, match="capacity"):
        HostedCache(CLAUDE, capacity=0)
    with pytest.raises(InvalidRequestError, match=r"prompt\[0\].tokens"):
        cache.predict([HostedBlock(b"a", -1)], 0.0)
    with pytest.raises(InvalidRequestError, match="TTL"):
        cache.predict([HostedBlock(b"a", 90_000, "2h")], 0.0)
    with pytest.raises(InvalidRequestError, match="written_tokens"):
        cache.observe([], 0, -1)


PROMPTS = st.tuples(st.text("ab", max_size=4), st.sets(st.sampled_from("ab")))


class HostedMachine(RuleBasedStateMachine):
    """A provider that does as its documents say is predicted right at every request; the bound holds."""

    @initialize(row=st.sampled_from([CLAUDE, GPT, DEEPSEEK]), capacity=st.sampled_from([3, 1000]))
    def start(self, row: CacheLimits, capacity: int) -> None:
        self.row, self.capacity = row, capacity
        self.cache = HostedCache(row, capacity=capacity)
        self.now = 0.0
        self.used: dict[str, float] = {}
        """When each entry was last used, by the text of its prefix."""
        self.sent: set[str] = set()

    def prefixes(self, text: str, marks: set[str]) -> list[str]:
        """Those at which a prompt writes."""
        ends = self.row.ends
        heads = [
            text[: n + 1]
            for n, letter in enumerate(text)
            if (n == len(text) - 1 if ends else self.row.everywhere or letter in marks)
        ]
        return [head for head in heads if self.row.cacheable(len(head) * 2000)]

    @rule(prompt=PROMPTS, wait=st.sampled_from([0.0, 10.0, 299.0]))
    def send(self, prompt: tuple[str, set[str]], wait: float) -> None:
        text, marks = prompt
        self.now += wait
        writes = self.prefixes(text, marks)
        reach = len(writes[-1]) if writes else 0
        lifetime = (self.row.lifetime() or (0.0, float("inf")))[1]
        alive = [p for p, used in self.used.items() if self.now - used < lifetime]
        found = max((len(p) for p in alive if text.startswith(p) and len(p) <= reach), default=0)
        sent = [HostedBlock(letter.encode(), 2000, "5m" if letter in marks else None) for letter in text]
        if self.row.max_breakpoints is None:
            sent = [block._replace(mark=None) for block in sent]
        prediction = self.cache.send(sent, self.now)
        if self.capacity == 1000:
            assert prediction.tokens == self.row.cacheable(found * 2000)
            assert (prediction.state == "cold") == (not found)
        self.cache.observe(sent, self.row.cacheable(found * 2000))
        common = max((len(p) for p in self.sent if text.startswith(p)), default=0)
        self.sent |= {text[: n + 1] for n in range(len(text))}
        self.used.update(dict.fromkeys([*writes, text[:found]] if found else writes, self.now))
        for head in [text[: n + 1] for n in range(found, len(text))]:
            if head not in writes and self.row.cacheable(len(head) * 2000) > found * 2000:
                self.used.pop(head, None)
        if self.row.shares and common:
            self.used.setdefault(text[:common], self.now)

    @invariant()
    def sound(self) -> None:
        self.cache.check_invariants()
        assert len(self.cache) <= self.capacity


TestHostedCache = HostedMachine.TestCase
TestHostedCache.settings = settings(max_examples=60, stateful_step_count=20)
