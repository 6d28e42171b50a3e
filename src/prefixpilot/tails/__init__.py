"""What follows the cached prefix of a request: policies, and what they know of the contexts sent lately."""

from prefixpilot.tails.policies import POLICIES, Tail, TailPolicy, co_occurrence
from prefixpilot.tails.window import Window

__all__ = ["POLICIES", "Tail", "TailPolicy", "Window", "co_occurrence"]
