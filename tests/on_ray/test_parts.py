"""Parts of a workload: all requests once, conversations whole, and together nearly what the whole plan saves."""

from __future__ import annotations

import json

import pytest

from prefixpilot.config import PilotConfig
from prefixpilot.core import Request, TenantId
from prefixpilot.ray.parts import PlannedPart, digest_of, parts_of, plan_part
from prefixpilot.workloads import Workload, WorkloadRequest
from prefixpilot.workloads.planned import PlanCounts
from prefixpilot.workloads.synthetic import sessions, topical

CONFIG = PilotConfig()


def planned(workload: Workload, parts: int) -> list[PlannedPart]:
    cut = parts_of(workload.requests, parts, CONFIG)
    assert sorted(i for part in cut for i in part) == list(range(len(workload.requests)))
    return [plan_part([workload.requests[i] for i in part], CONFIG) for part in cut]


def test_parts_together_save_what_the_whole_saves_and_lose_no_block() -> None:
    workload = topical(2_000).workload()
    (whole,), several = planned(workload, 1), planned(workload, 4)
    counts = sum((part.counts for part in several), PlanCounts())
    assert counts.requests == whole.counts.requests == 2_000
    assert counts.block_tokens == whole.counts.block_tokens
    assert counts.predicted_cached_tokens > 0.96 * whole.counts.predicted_cached_tokens  # parts of 500 lose 3 %
    lines = [json.loads(line) for part in several for line in part.lines.splitlines()]
    by_id = {entry.request.request_id: entry for entry in workload.requests}
    assert len({line["request_id"] for line in lines}) == 2_000
    for line in lines:
        assert set(line["blocks"]) == {block.id for block in by_id[line["request_id"]].request.blocks}
        assert len(line["blocks"]) == 15


def test_a_conversation_is_in_one_part_with_its_turns_in_order() -> None:
    workload = sessions(12, 4).workload().as_conversations()
    for part in parts_of(workload.requests, 3, CONFIG):
        chats = {workload.requests[i].request.conversation_id for i in part}
        turns = [i for i, entry in enumerate(workload.requests) if entry.request.conversation_id in chats]
        assert part == turns


def test_tenants_share_nothing() -> None:
    def entry(number: int, tenant: str) -> WorkloadRequest:
        made = Request.from_ids(f"{tenant}{number}", [7, number])
        request = Request(made.blocks, made.request_id, tenant=TenantId(tenant))
        return WorkloadRequest(request, made.request_id, 0, "here:1")

    entries = [entry(n, tenant) for n in range(20) for tenant in ("a", "b")]
    cut = parts_of(entries, 2, CONFIG)
    assert sorted({entries[i].request.tenant for i in part} for part in cut) == [{"a"}, {"b"}]


def test_the_digest_tells_inputs_settings_and_cuts_apart() -> None:
    said = {
        digest_of(b"one", CONFIG, [[0, 1], [2]]),
        digest_of(b"two", CONFIG, [[0, 1], [2]]),
        digest_of(b"one", PilotConfig(annotate=3), [[0, 1], [2]]),
        digest_of(b"one", CONFIG, [[0], [1, 2]]),
    }
    assert len(said) == 4
    assert digest_of(b"one", CONFIG, [[0, 1], [2]]) in said


@pytest.mark.parametrize("one", [PlanCounts(requests=1, block_tokens=10, predicted_cached_tokens=4)])
def test_counts_add_up(one: PlanCounts) -> None:
    both = one + one
    assert (both.requests, both.block_tokens, both.predicted_hit_rate, both.net_cached_tokens) == (2, 20, 0.4, 8)
