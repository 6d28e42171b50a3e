"""A canonical order of ``tools`` that stays for a conversation.

Clients list tools in another order from one request to the next, those of MCP servers above all, and tools stand in
front of everything. Canonical: built-in tools in the order given, then MCP's (``mcp__server__tool``) by name. Sticky: a
conversation keeps the order in which it first had its tools, and new ones come last, so that a tool that appears later
changes nothing in front of it.

The order of tools says nothing to a model, but a client's cache mark stands on one of them: what a mark covers stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prefixpilot.apis.base import Prompt
from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.jsontext import Permute
from prefixpilot.pieces import Span
from prefixpilot.volatile.base import Change

MCP_PREFIX = "mcp__"


class ToolOrder(NamedTuple):
    """A planned order.

    Attributes:
        edit: of the body; ``None`` if the tools stand right, or must stay as they are.
        names: what the conversation is to remember once this has been sent; empty if nothing.
        changes: for a dry run.
    """

    edit: Permute | None
    names: tuple[str, ...]
    changes: tuple[Change, ...]


class ToolOrders:
    """The order in which each conversation has its tools. The least recently used conversation is forgotten first.

    Args:
        capacity: conversations kept.
        max_tools: a conversation with more names than this, gone ones counted, is left alone.
    """

    def __init__(self, capacity: int = 10_000, max_tools: int = 1_000) -> None:
        for name, value in (("capacity", capacity), ("max_tools", max_tools)):
            if type(value) is not int or value < 1:
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        self._capacity = capacity
        self._max_tools = max_tools
        self._orders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._orders)

    def plan(self, prompt: Prompt, conversation: bytes) -> ToolOrder:
        """The order for a request. Changes nothing. O(tools log tools).

        Tools stay as they are if one has no name, two have the same, there are too many, or the order would move a
        tool with a cache mark or take another tool to the other side of one.
        """
        tools = prompt.body.get("tools")
        names = [tool_name(tool) for tool in tools] if isinstance(tools, list) else []
        known = self._orders.get(conversation, ())
        named = [name for name in names if name is not None]
        ordered = sticky(named, known)
        remembered = (*known, *(name for name in ordered if name not in set(known)))
        if len(set(named)) < len(names) or len(remembered) > self._max_tools:
            return ToolOrder(None, (), ())
        place = {name: i for i, name in enumerate(named)}
        order = tuple(place[name] for name in ordered)
        if not _keeps_marks(tools, order):
            return ToolOrder(None, (), ())
        if order == tuple(range(len(order))):
            return ToolOrder(None, remembered, ())
        what = "tools stand in the order of the conversation" if known else "tools stand in canonical order"
        change = Change("tool-order", ("tools",), Span(0, len(order)), what)
        return ToolOrder(Permute(("tools",), order), remembered, (change,))

    def remember(self, conversation: bytes, names: tuple[str, ...]) -> None:
        """Keeps the names of a plan that was sent; nothing if it has none."""
        if not names or len(names) > self._max_tools:
            return
        self._orders[conversation] = names
        self._orders.move_to_end(conversation)
        if len(self._orders) > self._capacity:
            self._orders.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._orders.clear()

    def check_invariants(self) -> None:
        """Raise :class:`InvariantError` unless the bounds hold and no conversation has a name twice."""
        if len(self._orders) > self._capacity:
            raise InvariantError(f"{len(self._orders)} conversations, bound {self._capacity}")
        for names in self._orders.values():
            if not names or len(names) > self._max_tools or len(set(names)) != len(names):
                raise InvariantError(f"a conversation has the tools {names}")


def sticky(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names that are known in the order in which they became so, then new ones in canonical order.

    >>> sticky(["mcp__b__x", "read", "mcp__a__y", "write"], [])
    ['read', 'write', 'mcp__a__y', 'mcp__b__x']
    >>> sticky(["new", "read", "mcp__b__x"], ["mcp__b__x", "gone", "read"])
    ['mcp__b__x', 'read', 'new']
    """
    rank = {name: i for i, name in enumerate(known)}
    old = sorted((name for name in names if name in rank), key=rank.__getitem__)
    new = [name for name in names if name not in rank]
    builtin = [name for name in new if not name.startswith(MCP_PREFIX)]
    return [*old, *builtin, *sorted(name for name in new if name.startswith(MCP_PREFIX))]


def tool_name(tool: Any) -> str | None:
    """What tells a tool from the others of a request, in all APIs; ``None`` if nothing does.

    Built-in tools of a provider have a type (``web_search``), MCP servers a label.
    """
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    owner = function if isinstance(function, Mapping) else tool
    for key in ("name", "server_label", "type"):
        value = owner.get(key)
        if isinstance(value, str) and value:
            return value if key == "name" else f"{key}:{value}"
    return None


def _keeps_marks(tools: Any, order: Sequence[int]) -> bool:
    """Whether each tool with a cache mark stays in its place, with the same tools in front of it."""
    highest = -1
    for i, source in enumerate(order):
        highest = max(highest, source)
        marked = tools[i].get("cache_control") is not None
        if marked and (source != i or highest != i):
            return False
    return True
