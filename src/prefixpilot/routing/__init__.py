"""Which replica of an engine a request goes to (floor 4). Pure: the caller says how busy replicas are."""

from prefixpilot.routing.base import Load, Route, RoutedRequest, Router
from prefixpilot.routing.baselines import ConsistentHash, LeastLoaded, PrefixHash, RoundRobin
from prefixpilot.routing.context_aware import ContextAware
from prefixpilot.routing.policies import POLICIES, PolicyName, router_of
from prefixpilot.routing.seats import Change, Seats
from prefixpilot.routing.shared_blocks import SharedBlocks

__all__ = [
    "POLICIES",
    "Change",
    "ConsistentHash",
    "ContextAware",
    "LeastLoaded",
    "Load",
    "PolicyName",
    "PrefixHash",
    "RoundRobin",
    "Route",
    "RoutedRequest",
    "Router",
    "Seats",
    "SharedBlocks",
    "router_of",
]
