"""What helps where a source of events tells nothing, in the names of the settings. Pure.

What stands in the way is worded in :mod:`prefixpilot.engines.why`.
"""

from __future__ import annotations

from typing import Final

from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.cache.settings import AUTO

THE_CONFIG: Final = "the engine's --kv-events-config"
NAME_IT: Final = "name its endpoint: --cache-events tcp://*:5557"
NOT_YET: Final = "--cache-events auto: the engine does not list its publishers yet"
NOT_LISTED: Final = (
    "--cache-events auto: the engine lists no publisher of events at GET /kv_event_sources; "
    f"give it --kv-events-config with publisher zmq, or {NAME_IT} "
    "(llama.cpp publishes none: leave --cache-events off)"
)


def remedy(status: SourceStatus, events: str, unresolved: str | None = None, *, replays: bool = True) -> str:
    """What helps; empty for nothing.

    Args:
        events: the setting ``cache.events``.
        unresolved: that the source's host has no address, and why; ``None``: it has one.
        replays: whether it has an endpoint for replays.
    """
    option = f"--cache-events {events}"
    if unresolved is not None:
        return f"{unresolved} (cache.events, {option})"
    if not status.connected:
        return _unconnected(status, events, option)
    if status.silent:
        return _silent(replays)
    if status.unanswered:
        return f'compare cache.replay (--cache-replay) with "replay_endpoint" in {THE_CONFIG}'
    if status.unreadable and status.unreadable >= status.lost:
        return f"see that nothing but the engine publishes at cache.events ({option})"
    return "" if replays else _no_replay(events, option)


def _unconnected(status: SourceStatus, events: str, option: str) -> str:
    if status.batches:
        still = f"its endpoint is still that of cache.events ({option})"
        return f"see that the engine runs, that it was started with --kv-events-config, and that {still}"
    if events == AUTO:
        return f"the engine lists it ({option}); open its port to this machine, or name another endpoint"
    return f'compare cache.events ({option}) with "endpoint" in {THE_CONFIG}'


def _silent(replays: bool) -> str:
    see = "see in the engine's log whether its publisher of events still runs; a restart of the engine starts it again"
    asked = f'with "replay_endpoint" in {THE_CONFIG} and --cache-replay it could be asked'
    return see if replays else f"{see}; {asked}"


def _no_replay(events: str, option: str) -> str:
    given = 'give the engine "replay_endpoint" in its --kv-events-config'
    if events == AUTO:
        return f"{given} ({option} finds it)"
    return f"{given}, and name it in cache.replay (--cache-replay tcp://*:5558)"
