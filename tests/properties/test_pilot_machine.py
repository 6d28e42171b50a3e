"""The façade under any sequence of calls, checked on the plans it gives (invariants 1 to 3, 7 to 9)."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.properties.strategies import retrieved

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Plan, Request, render_blocks
from prefixpilot.annotations import estimate_annotation_tokens, order_annotation
from prefixpilot.core import BlockId, ConversationId, RequestId, TenantId
from prefixpilot.tails import POLICIES

configs = st.builds(
    lambda how, **settings: PilotConfig(planner=how[0], matcher=how[1], **settings),
    st.sampled_from([("shared-tokens", "prefix"), ("paper", "prefix"), ("paper", "paper")]),
    schedule=st.sampled_from(["depth-first", "paper"]),
    tail=st.sampled_from(["adaptive", "adaptive", *POLICIES]),
    labels=st.sampled_from(["counted", "ids"]),
    annotate=st.sampled_from(["all", 0, 1, 2, 5]),
    gate=st.booleans(),
    normalization=st.sampled_from(["none", "whitespace", "unicode"]),
    max_contexts=st.sampled_from([1, 3, 100]),
    max_blocks=st.just(100),
    max_conversations=st.just(100),
    cache_tokens=st.sampled_from([None, 6, 40]),
)
tenants = st.sampled_from([TenantId("a"), TenantId("b")])
scopes = st.sampled_from(["", "model-2"])
conversations = st.sampled_from([None, None, ConversationId("x"), ConversationId("y")])


def block(number: BlockId) -> ContextBlock:
    """Even ids have a text too, odd ones are ids only; 8 and 9 differ by whitespace alone."""
    if isinstance(number, int) and number % 2:
        return ContextBlock(id=number)
    spaces = "  " if number == 8 else " "
    name = str(6 if number == 8 else number)
    return ContextBlock(text=f"text{spaces}of {name}", id=number)


class PilotMachine(RuleBasedStateMachine):
    """Sends each plan as it comes and keeps, per conversation, the prompt that the engine would see."""

    plans = Bundle("plans")

    @initialize(config=configs)
    def start(self, config: PilotConfig) -> None:
        self.config = config
        self.pilot = ContextPilot(config)
        self.prompts: dict[tuple[TenantId, ConversationId], list[Plan]] = {}
        self.count = 0

    def request(self, ids: list[BlockId], tenant: TenantId, scope: str, conversation: ConversationId | None) -> Request:
        self.count += 1
        return Request(tuple(block(i) for i in ids), RequestId(f"r{self.count}"), conversation, tenant, scope)

    def check(self, request: Request, plan: Plan) -> None:
        assert (plan.request_id, plan.tenant, plan.scope) == (request.request_id, request.tenant, request.scope)
        assert sorted(plan.order) == list(range(len(request.blocks)))
        assert len(plan.labels) == len(request.blocks)
        standing_first = list(dict.fromkeys(planned.label for planned in plan.blocks))
        moved = standing_first != list(dict.fromkeys(plan.labels))  # a repeat tells nothing of relevance
        assert moved or plan.order_annotation is None
        assert plan.order_annotation is not None or not moved or self.config.annotate != "all"
        self.check_annotation(plan)
        history = self.history(request)
        standing = {b.label: b.block_id for p in history for b in p.blocks if b.location_annotation is None}
        for planned in plan.blocks:
            assert planned.block.id is None or planned.block.text is None or planned.block.text.startswith("text")
            if planned.location_annotation is None:
                assert self.config.labels == "ids" or planned.label not in standing
                standing.setdefault(planned.label, planned.block_id)
            else:
                assert f"[{planned.label}]" in planned.location_annotation
                assert standing[planned.label] == planned.block_id
        if plan.turn:
            assert list(plan.order) == sorted(plan.order)
        assert 0 <= plan.prefix_len <= len(plan.sent)

    def check_annotation(self, plan: Plan) -> None:
        """It names the most relevant blocks, in their order, and says if there are more."""
        texts = [b.location_annotation for b in plan.blocks if b.location_annotation]
        texts += [plan.order_annotation] if plan.order_annotation else []
        assert plan.annotation_tokens == sum(map(estimate_annotation_tokens, texts))
        if plan.order_annotation is None:
            return
        labels = list(dict.fromkeys(plan.labels))
        named = labels if self.config.annotate == "all" else labels[: self.config.annotate]
        assert plan.order_annotation == order_annotation(named, rest=len(named) < len(labels))

    def history(self, request: Request) -> list[Plan]:
        if request.conversation_id is None:
            return []
        return self.prompts.setdefault((request.tenant, request.conversation_id), [])

    @rule(target=plans, ids=retrieved, tenant=tenants, scope=scopes, conversation=conversations)
    def optimize(self, ids: list[BlockId], tenant: TenantId, scope: str, conversation: ConversationId | None) -> Plan:
        request = self.request(ids, tenant, scope, conversation)
        plan = self.pilot.optimize(request)
        self.check(request, plan)
        self.history(request).append(plan)
        return plan

    @rule(many=st.lists(st.tuples(retrieved, tenants, scopes, conversations), max_size=8))
    def optimize_batch(self, many: list[tuple[list[BlockId], TenantId, str, ConversationId | None]]) -> None:
        requests = [self.request(*arguments) for arguments in many]
        planned = self.pilot.optimize_batch(requests)
        assert sorted(entry.position for entry in planned) == list(range(len(requests)))
        turns: dict[ConversationId | None, list[int]] = {}
        for entry in planned:
            assert entry.request is requests[entry.position]
            self.check(entry.request, entry.plan)
            self.history(entry.request).append(entry.plan)
            if entry.request.conversation_id:
                turns.setdefault(f"{entry.request.tenant}/{entry.request.conversation_id}", []).append(entry.position)  # type: ignore[arg-type]
        assert all(positions == sorted(positions) for positions in turns.values())

    @rule(ids=retrieved, tenant=tenants, scope=scopes)
    def proposing_changes_nothing_and_repeats_itself(self, ids: list[BlockId], tenant: TenantId, scope: str) -> None:
        before = self.pilot.snapshot()
        request = self.request(ids, tenant, scope, None)
        first, second = self.pilot.propose(request), self.pilot.propose(request)
        assert first == second
        given = self.pilot.as_given(request)
        assert list(given.order) == sorted(given.order)
        assert len(given.sent) == len(ids) and given.order_annotation is None
        assert Counter(given.sent) == Counter(b.block_id for b in first.blocks)
        assert self.pilot.snapshot() == before

    @rule(many=st.lists(st.tuples(retrieved, tenants, scopes), max_size=6))
    def proposing_a_batch_changes_nothing(self, many: list[tuple[list[BlockId], TenantId, str]]) -> None:
        before = self.pilot.snapshot()
        requests = [self.request(ids, tenant, scope, None) for ids, tenant, scope in many]
        planned = self.pilot.propose_batch(requests)
        assert sorted(entry.position for entry in planned) == list(range(len(requests)))
        assert planned == self.pilot.propose_batch(requests)
        for entry in planned:
            assert entry.request is requests[entry.position]
            if not self.config.gate:
                self.check(entry.request, entry.plan)
        assert self.pilot.snapshot() == before

    @rule(plan=plans)
    def learning_again_is_harmless(self, plan: Plan) -> None:
        self.pilot.learn(plan)

    @rule(gone=st.lists(plans, max_size=4))
    def evict(self, gone: list[Plan]) -> None:
        live = self.pilot.live_requests
        known = self.pilot.evict([plan.request_id for plan in gone])
        assert self.pilot.live_requests == live - known
        assert self.pilot.evict([plan.request_id for plan in gone]) == 0

    @rule(plan=plans, blocks=st.integers(0, 4), wrapped=st.booleans())
    def shorten(self, plan: Plan, blocks: int, wrapped: bool) -> None:
        """What is no longer cached is not planned with; the rest of the index is as it was."""
        live = self.pilot.live_requests
        as_engines_write_it = f"chatcmpl-{plan.request_id}-0123abcd" if wrapped else plan.request_id
        news = self.pilot.shorten(as_engines_write_it, blocks)
        assert self.pilot.live_requests == live - (news and not blocks)
        assert not self.pilot.shorten(plan.request_id, max(blocks, 1)) or not blocks
        held = [n for t in self.pilot.snapshot()["trees"] for n in t["nodes"] if plan.request_id in n["requests"]]
        assert len(held) <= 1
        assert all(len(node["blocks"]) <= blocks for node in held)

    @rule(tenant=tenants, conversation=st.sampled_from([ConversationId("x"), ConversationId("y")]))
    def forget(self, tenant: TenantId, conversation: ConversationId) -> None:
        self.pilot.forget_conversation(conversation, tenant)
        self.prompts.pop((tenant, conversation), None)

    @rule()
    def a_snapshot_carries_over(self) -> None:
        data = json.loads(json.dumps(self.pilot.snapshot()))
        restored = ContextPilot(self.config)
        restored.restore(data)
        restored.check_invariants()
        assert restored.snapshot() == data

    @rule(plan=plans)
    def rendering_gives_every_text_once_or_points_at_it(self, plan: Plan) -> None:
        if all(b.block.text is not None for b in plan.blocks):
            text = render_blocks(plan)
            for planned in plan.blocks:
                body = planned.location_annotation or f"[{planned.label}]\n{planned.block.text}"
                assert body in text

    @invariant()
    def everything_is_sound_and_bounded(self) -> None:
        self.pilot.check_invariants()
        assert self.pilot.live_requests <= self.config.max_contexts


TestPilotMachine = PilotMachine.TestCase
TestPilotMachine.settings = settings(max_examples=60, stateful_step_count=15)
