"""PrefixPilot: order, schedule and de-duplicate the context blocks of prompts, so that the KV prefix cache hits.

An independent implementation of ContextPilot (MLSys 2026).
"""

from prefixpilot.annotations import Templates
from prefixpilot.config import PilotConfig
from prefixpilot.constraints import Constraints
from prefixpilot.core import ContextBlock, Plan, PlannedBlock, PlannedRequest, Request
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks

__version__ = "0.1.0"

__all__ = [
    "Constraints",
    "ContextBlock",
    "ContextPilot",
    "PilotConfig",
    "Plan",
    "PlannedBlock",
    "PlannedRequest",
    "Request",
    "Templates",
    "render_blocks",
]
