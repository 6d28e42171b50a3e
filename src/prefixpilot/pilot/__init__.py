"""The façade (floor 3): composes index, ordering, scheduling, de-duplication and prompts. Pure and synchronous."""

from prefixpilot.pilot.context_pilot import ContextPilot

__all__ = ["ContextPilot"]
