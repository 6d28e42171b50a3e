"""The order of tools: canonical at first, then the conversation's own; marks stay where they are; bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.volatile.prompts import chat

from prefixpilot.apis.base import Prompt
from prefixpilot.errors import ConfigError
from prefixpilot.volatile.tool_order import ToolOrders, sticky, tool_name


def with_tools(*tools: Any) -> Prompt:
    return chat(("user", "Hello"), body={"model": "m", "tools": list(tools)})


def named(*names: str, marked: str = "") -> Prompt:
    mark = {"cache_control": {"type": "ephemeral"}}
    return with_tools(*({"name": name, **(mark if name == marked else {})} for name in names))


def ordered(orders: ToolOrders, prompt: Prompt, conversation: bytes = b"c") -> list[str]:
    """The names as they would be sent; the conversation remembers them."""
    plan = orders.plan(prompt, conversation)
    orders.remember(conversation, plan.names)
    names = [tool["name"] for tool in prompt.body["tools"]]
    return names if plan.edit is None else [names[i] for i in plan.edit.order]


def test_built_in_tools_keep_their_order_and_mcp_tools_are_sorted() -> None:
    plan = ToolOrders().plan(named("mcp__z__a", "Write", "mcp__a__z", "Read"), b"c")
    assert plan.edit is not None
    assert plan.edit.pointer == ("tools",)
    assert list(plan.edit.order) == [1, 3, 2, 0]
    assert plan.names == ("Write", "Read", "mcp__a__z", "mcp__z__a")
    assert [change.rule for change in plan.changes] == ["tool-order"]


def test_a_conversation_keeps_its_order_and_new_tools_come_last() -> None:
    orders = ToolOrders()
    assert ordered(orders, named("b", "mcp__s__x")) == ["b", "mcp__s__x"]
    assert ordered(orders, named("a", "mcp__s__x", "b")) == ["b", "mcp__s__x", "a"]
    assert ordered(orders, named("a", "b")) == ["b", "a"]
    assert ordered(orders, named("mcp__s__x", "a", "b")) == ["b", "mcp__s__x", "a"], "a tool that returns has its place"
    assert ordered(orders, named("a", "mcp__s__x", "b"), b"other") == ["a", "b", "mcp__s__x"]


def test_a_plan_changes_nothing_until_it_is_remembered() -> None:
    orders = ToolOrders()
    orders.plan(named("b", "a"), b"c")
    assert len(orders) == 0


@pytest.mark.parametrize(
    "prompt",
    [
        named("mcp__b", "a", "a"),
        with_tools({"name": "mcp__b"}, {"input_schema": {}}),
        with_tools({"name": "mcp__b"}, "a"),
        named("a"),
        named("mcp__b", "a", marked="a"),
        named("mcp__b", "mcp__a", "c", marked="mcp__a"),
        chat(("user", "Hello"), body={"tools": {"a": 1}}),
        chat(("user", "Hello")),
    ],
)
def test_tools_that_cannot_be_told_apart_or_moved_stay(prompt: Prompt) -> None:
    plan = ToolOrders().plan(prompt, b"c")
    assert plan.edit is None
    assert plan.changes == ()


def test_tools_move_on_their_own_side_of_a_mark() -> None:
    plan = ToolOrders().plan(named("b", "mcp__z", "mcp__c", "mcp__a", marked="b"), b"c")
    assert plan.edit is not None
    assert list(plan.edit.order) == [0, 3, 2, 1]


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"type": "function", "function": {"name": "read"}}, "read"),
        ({"type": "function", "name": "read"}, "read"),
        ({"type": "web_search"}, "type:web_search"),
        ({"type": "mcp", "server_label": "files"}, "server_label:files"),
        ({"type": "web_search_20250305", "name": "web_search"}, "web_search"),
        ({"name": 3}, None),
        ([], None),
    ],
)
def test_names_in_all_apis(tool: Any, name: str | None) -> None:
    assert tool_name(tool) == name


def test_bounds() -> None:
    orders = ToolOrders(capacity=1, max_tools=2)
    ordered(orders, named("b", "a"), b"1")
    ordered(orders, named("b", "a"), b"2")
    assert len(orders) == 1
    assert orders.plan(named("b", "a", "mcp__c"), b"3").names == ()
    with pytest.raises(ConfigError):
        ToolOrders(capacity=0)


names = st.lists(st.sampled_from(["a", "b", "c", "mcp__a__x", "mcp__b__x", "mcp__b__y"]), unique=True)


@given(names, names)
def test_the_order_is_a_permutation_and_settles(now: list[str], known: list[str]) -> None:
    once = sticky(now, known)
    assert sorted(once) == sorted(now)
    assert sticky(once, known) == once
    assert [name for name in once if name in known] == [name for name in known if name in now]


class Conversations(RuleBasedStateMachine):
    """Whatever tools come, those that a conversation had before keep their order among themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.orders = ToolOrders(capacity=2, max_tools=5)
        self.last: dict[bytes, list[str]] = {}

    @rule(conversation=st.sampled_from([b"1", b"2", b"3"]), tools=names)
    def send(self, conversation: bytes, tools: list[str]) -> None:
        known = self.orders.plan(named("x", "y"), conversation).names[:-2] or ()
        sent = ordered(self.orders, named(*tools), conversation)
        assert sorted(sent) == sorted(tools)
        again = self.orders.plan(named(*tools), conversation)
        if again.names:
            kept = [name for name in sent if name in known]
            assert kept == [name for name in known if name in sent]

    @invariant()
    def holds(self) -> None:
        self.orders.check_invariants()


TestConversations = Conversations.TestCase


def test_a_lone_tool_is_remembered_too() -> None:
    orders = ToolOrders()
    assert ordered(orders, named("mcp__s__x")) == ["mcp__s__x"]
    assert ordered(orders, named("a", "mcp__s__x")) == ["mcp__s__x", "a"]
    orders.clear()
    assert ordered(orders, named("a", "mcp__s__x")) == ["a", "mcp__s__x"]
