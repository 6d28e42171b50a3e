"""Doubles that ship with the product (floor 5): an engine without a model, and a way to cut a real model down.

``SimulatedEngine`` needs the extra ``[proxy]`` (uvicorn). Imported by their own names, for what they need:
:mod:`prefixpilot.testing.tiny_model` (the package ``gguf``), :mod:`prefixpilot.testing.event_publisher` (the extra
``[kv-events]``).
"""

from prefixpilot.testing.faults import (
    BreakOff,
    CloseConnection,
    ErrorEvent,
    Fault,
    Garbage,
    HalfClose,
    Respond,
    Stall,
)
from prefixpilot.testing.page_pool import PagePool
from prefixpilot.testing.simulated_engine import ReceivedRequest, SimulatedEngine
from prefixpilot.testing.wires import SimulatedCall, SimulatedReply

__all__ = [
    "BreakOff",
    "CloseConnection",
    "ErrorEvent",
    "Fault",
    "Garbage",
    "HalfClose",
    "PagePool",
    "ReceivedRequest",
    "Respond",
    "SimulatedCall",
    "SimulatedEngine",
    "SimulatedReply",
    "Stall",
]
