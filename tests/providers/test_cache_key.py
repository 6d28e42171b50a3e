"""OpenAI's cache key: equal for equal beginnings, absent where the client sends one, split by rate."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.apis import CHAT, COMPLETIONS, RESPONSES
from prefixpilot.apis.base import Prompt
from prefixpilot.errors import ConfigError
from prefixpilot.jsontext import SetMember
from prefixpilot.providers.cache_key import KeyShards, cache_key_edit, conversation_seed, stable_key

TOOLS = [{"type": "function", "function": {"name": "read"}}]


def chat(*turns: tuple[str, str], **more: Any) -> Prompt:
    messages = [{"role": role, "content": content} for role, content in turns]
    prompt = CHAT.read({"model": "gpt-5", "messages": messages, **more})
    assert prompt is not None
    return prompt


def test_conversations_with_one_beginning_have_one_key() -> None:
    first = stable_key(chat(("system", "Help."), ("user", "a"), tools=TOOLS))
    second = stable_key(chat(("system", "Help."), ("user", "b"), ("assistant", "c"), ("user", "d"), tools=TOOLS))
    assert first == second
    assert first is not None
    assert re.fullmatch(r"pp-[0-9a-f]{24}", first)


def test_the_key_is_the_same_in_every_process() -> None:
    assert stable_key(chat(("system", "Help."), ("user", "a"), tools=TOOLS)) == "pp-12271b29ec20fefac31ebba0"


@pytest.mark.parametrize(
    "other",
    [
        chat(("system", "Help!"), ("user", "a"), tools=TOOLS),
        chat(("system", "Help."), ("user", "a"), tools=[]),
        chat(("system", "Help."), ("user", "a"), tools=TOOLS, model="gpt-5-mini"),
        chat(("system", "Help."), ("system", ""), ("user", "a"), tools=TOOLS),
    ],
)
def test_another_beginning_has_another_key(other: Prompt) -> None:
    assert stable_key(other) != stable_key(chat(("system", "Help."), ("user", "a"), tools=TOOLS))


def test_scope_and_treated_texts_count() -> None:
    prompt = chat(("system", "Now 14:03"), ("user", "a"))
    plain = stable_key(prompt)
    assert stable_key(prompt, scope="tenant") != plain
    treated = stable_key(prompt, texts={("messages", 0, "content"): "Now"})
    assert treated == stable_key(chat(("system", "Now"), ("user", "a"))) != plain


def test_without_a_stable_beginning_there_is_no_key() -> None:
    assert stable_key(chat(("user", "a"))) is None
    assert stable_key(chat(("system", ""), ("user", "a"), tools=[])) is None
    assert stable_key(chat(("user", "a"), tools=TOOLS)) is not None


def test_the_key_is_added_only_where_there_is_none() -> None:
    assert cache_key_edit(chat(("user", "a")), "k") == SetMember((), "prompt_cache_key", "k")
    assert cache_key_edit(chat(("user", "a"), prompt_cache_options={"ttl": "30m"}), "k") is not None
    for own in ("mine", "", None):
        assert cache_key_edit(chat(("user", "a"), prompt_cache_key=own), "k") is None
    responses = RESPONSES.read({"model": "m", "input": "a"})
    completions = COMPLETIONS.read({"model": "m", "prompt": "a"})
    assert responses is not None
    assert completions is not None
    assert cache_key_edit(responses, "k") is not None
    assert cache_key_edit(completions, "k") is None


def test_a_conversation_has_one_seed_for_all_its_turns() -> None:
    first = conversation_seed(chat(("system", "Help."), ("user", "a")))
    assert first == conversation_seed(chat(("system", "At 9."), ("user", "a"), ("assistant", "b"), ("user", "c")))
    assert first != conversation_seed(chat(("system", "Help."), ("user", "b")))


def seeds(count: int) -> list[bytes]:
    return [i.to_bytes(4, "big") for i in range(count)]


def test_a_key_is_split_before_it_carries_too_much() -> None:
    shards = KeyShards(15)
    assert [shards.key("k", seed, 0.0) for seed in seeds(15)] == ["k"] * 15
    for seed in seeds(585):
        shards.key("k", seed, 30.0)
    used = Counter(shards.key("k", seed, 61.0) for seed in seeds(600))
    assert len(used) == 40
    assert max(used.values()) <= 30, "shares differ, but none is far from 15"
    assert set(used) == {"k"} | {f"k-{i}" for i in range(1, 40)}


def test_a_conversation_stays_with_its_shard_unless_the_new_one_takes_it() -> None:
    def with_shards(count: int) -> dict[bytes, str]:
        shards = KeyShards(1, max_shards=count)
        for _ in range(count):
            shards.key("k", b"", 0.0)
        return {seed: shards.key("k", seed, 0.0) for seed in seeds(300)}

    four, five = with_shards(4), with_shards(5)
    moved = [seed for seed in four if four[seed] != five[seed]]
    assert all(five[seed] == "k-4" for seed in moved)
    assert 20 < len(moved) < 120, "about one in five"


def test_a_quiet_key_is_one_again() -> None:
    shards = KeyShards(1, window=2)
    for _ in range(50):
        shards.key("k", b"s", 0.0)
    assert shards.key("k", b"s", 121.0) == "k"


@pytest.mark.parametrize("name", ["per_minute", "window", "max_keys", "max_shards"])
def test_bounds_are_counts(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KeyShards(**{name: 0})


class Traffic(RuleBasedStateMachine):
    """Shards against a list of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = KeyShards(2, window=3, max_keys=3, max_shards=4)
        self.requests: list[tuple[str, int]] = []
        self.recent: list[str] = []
        self.now = 0.0

    @rule(seconds=st.sampled_from([0, 10, 60, 200]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(key=st.sampled_from("abcd"), seed=st.sampled_from(seeds(6)))
    def request(self, key: str, seed: bytes) -> None:
        if key not in self.recent[-3:]:
            self.requests = [request for request in self.requests if request[0] != key]
        self.recent = [k for k in self.recent if k != key] + [key]
        minute = int(self.now // 60)
        self.requests.append((key, minute))
        counts = Counter(m for k, m in self.requests if k == key and m > minute - 3)
        needed = min(-(-max(counts.values()) // 2), 4)
        shard = self.shards.key(key, seed, self.now)
        assert shard in {key, *(f"{key}-{i}" for i in range(1, needed))}

    @invariant()
    def holds(self) -> None:
        self.shards.check_invariants()
        assert len(self.shards) <= 3


TestTraffic = Traffic.TestCase
