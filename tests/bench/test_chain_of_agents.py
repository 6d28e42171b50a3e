"""The paper's case of Chain-of-Agents, modelled at full size: 15 workers, 500 questions of 15 documents each."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from benchmarks.chain_of_agents import LLAMA_48GB, QWEN_48GB, QWEN_80GB, Replicas, Team, floor, with_us, without_us

from prefixpilot import ContextBlock

TEAM = Team(workers=15, system=100, notes=100, question=30)


@pytest.fixture(scope="module")
def contexts() -> list[list[ContextBlock]]:
    """Drawn as MultihopRAG's are: 629 documents of 550 tokens in the mean, the first wanted by 90 questions, the 100th
    by 18, the 500th by 4."""
    random = Random(3)
    documents = [ContextBlock(f"text {i}", id=i, tokens=100 + i * 347 % 900) for i in range(629)]
    random.shuffle(documents)
    weights = list(accumulate(1 / (rank + 25) for rank in range(629)))
    drawn = []
    for _ in range(500):
        chosen: dict[int, None] = {}
        while len(chosen) < 15:
            chosen.setdefault(random.choices(range(629), cum_weights=weights)[0])
        drawn.append([documents[i] for i in chosen])
    return drawn


def test_the_sizes_are_those_of_the_papers_cards() -> None:
    assert (QWEN_48GB, LLAMA_48GB) == (253_000, 223_000)
    assert QWEN_80GB == 458_000


def test_on_one_card_of_48_gb_1_8_times_less_is_prefilled(contexts: list[list[ContextBlock]]) -> None:
    """The goal's case: the model of the paper's row that leaves more room, alone on the smaller of its cards."""
    before = without_us(contexts, TEAM, Replicas(1, QWEN_48GB, TEAM.notes)).prefilled
    after = with_us(contexts, TEAM, Replicas(1, QWEN_48GB, TEAM.notes), "shared").prefilled
    assert before >= 1.8 * after


def test_on_sixteen_replicas_1_8_times_less_is_prefilled_in_caches_without_bound(
    contexts: list[list[ContextBlock]],
) -> None:
    """What a document needs is then not a place in a cache, but to be read where it was read before."""
    before = without_us(contexts, TEAM, Replicas(16, None)).prefilled
    after = with_us(contexts, TEAM, Replicas(16, None), "shared").prefilled
    assert before >= 1.8 * after


def test_in_a_small_cache_no_more_is_computed_than_in_one_without_bound(contexts: list[list[ContextBlock]]) -> None:
    """So nothing is left to save in this layout; a cache with room for the whole corpus saves without us as much."""
    small = with_us(contexts, TEAM, Replicas(1, 20_000, TEAM.notes), "shared").prefilled
    assert small <= 1.002 * floor(contexts, TEAM, "shared")
