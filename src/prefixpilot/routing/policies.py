"""Policies by name."""

from __future__ import annotations

from typing import Final, Literal, get_args

from prefixpilot.errors import ConfigError
from prefixpilot.routing.base import Router
from prefixpilot.routing.baselines import ConsistentHash, LeastLoaded, PrefixHash, RoundRobin
from prefixpilot.routing.context_aware import ContextAware

PolicyName = Literal["context-aware", "round-robin", "least-loaded", "consistent-hash", "prefix-hash"]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)


def router_of(name: str, cache_tokens: int | None = None, page_size: int = 1) -> Router:
    """A new router of that policy.

    Raises:
        ConfigError: there is none of that name.
    """
    if name == "context-aware":
        return ContextAware(cache_tokens, page_size)
    if name == "round-robin":
        return RoundRobin()
    if name == "least-loaded":
        return LeastLoaded()
    if name == "consistent-hash":
        return ConsistentHash()
    if name == "prefix-hash":
        return PrefixHash()
    raise ConfigError("policy", f"is {name!r}", f"use one of: {', '.join(POLICIES)}")
