"""PrefixPilot: order, schedule and de-duplicate the context blocks of prompts, so that the KV prefix cache hits.

An independent implementation of ContextPilot (MLSys 2026).
"""

from types import FunctionType
from typing import Final

from prefixpilot.annotations import Templates
from prefixpilot.config import PilotConfig
from prefixpilot.constraints import Constraints
from prefixpilot.core import ContextBlock, Plan, PlannedBlock, PlannedRequest, Request
from prefixpilot.index.match import match_prefix as _match_prefix
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks

__version__ = "0.1.0"

COMPILED: Final = not isinstance(_match_prefix, FunctionType)
"""Whether the inner modules run as compiled code (docs/decisions/0024): what they do is the same, in less time."""

__all__ = [
    "COMPILED",
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
