"""Policies by which a proxy replica is chosen, by name. Pure; without Ray."""

from __future__ import annotations

from prefixpilot.routing import Router, SharedBlocks, router_of


def policy_of(name: str, cache_tokens: int | None = None) -> Router:
    """A new router of that policy; context-aware is :class:`~prefixpilot.routing.SharedBlocks`, since requests come to
    a proxy in their given order.

    Raises:
        ConfigError: there is none of that name.
    """
    return SharedBlocks(cache_tokens) if name == "context-aware" else router_of(name)
