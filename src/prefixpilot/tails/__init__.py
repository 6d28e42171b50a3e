"""What follows the cached prefix of a request: policies, and what they know of the contexts sent lately."""

from prefixpilot.tails.policies import POLICIES, Tail, TailPolicy
from prefixpilot.tails.window import Window

__all__ = ["POLICIES", "Tail", "TailPolicy", "Window"]
