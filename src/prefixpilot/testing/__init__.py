"""Doubles that ship with the product (floor 5): an engine without a model, and a way to cut a real model down.

``SimulatedEngine`` needs the extra ``[proxy]`` (uvicorn). :mod:`prefixpilot.testing.tiny_model` needs the package
``gguf`` and is imported by its own name.
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
from prefixpilot.testing.simulated_engine import ReceivedRequest, SimulatedEngine
from prefixpilot.testing.wires import SimulatedCall, SimulatedReply

__all__ = [
    "BreakOff",
    "CloseConnection",
    "ErrorEvent",
    "Fault",
    "Garbage",
    "HalfClose",
    "ReceivedRequest",
    "Respond",
    "SimulatedCall",
    "SimulatedEngine",
    "SimulatedReply",
    "Stall",
]
