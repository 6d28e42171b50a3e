"""Where an engine publishes its KV events, and which side binds there."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from prefixpilot.errors import ConfigError, EngineError

WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]"})
SCHEMES: Final = ("tcp://", "ipc://")
"""What another process can reach."""
MOST_RANKS: Final = 1024
ANSWER_BYTES: Final = 1 << 20
SHOWN_BYTES: Final = 80
"""Of an answer that cannot be read."""


class EventEndpoint(NamedTuple):
    """One engine's publisher, as its own configuration names it.

    vLLM and SGLang bind where the endpoint holds a wildcard (``tcp://*:5557``) or is local (``ipc://``), and connect
    where it names a host; we do the other half. The replay socket is always bound by the engine.

    Attributes:
        endpoint: the engine's ``endpoint``.
        replay: its ``replay_endpoint``; ``None`` if it has none: what is missed then is lost.
        topic: what batches' topics begin with; empty for all.
        ranks: data-parallel ranks; rank r has the port of rank 0 plus r.
        host: where the engine is, as seen from here; used where it binds a wildcard.
        connect: whether we connect; ``None``: by the rule above. SGLang's ``"bind": true`` needs ``True``.
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    ranks: int = 1
    host: str = "127.0.0.1"
    connect: bool | None = None

    @property
    def we_connect(self) -> bool:
        """Whether the engine binds."""
        return engine_binds(self.endpoint) if self.connect is None else self.connect


def engine_binds(endpoint: str) -> bool:
    """The engines' own rule. Any ``::`` counts for them, so an IPv6 address may too."""
    return any(mark in endpoint for mark in ("*", "::", "0.0.0.0")) or not endpoint.startswith("tcp://")


def check_endpoint(endpoint: EventEndpoint, field: str = "events") -> EventEndpoint:
    """``endpoint``, if ranks and addresses can be used.

    Raises:
        ConfigError: which of them cannot.
    """
    if not 1 <= endpoint.ranks <= MOST_RANKS:
        raise ConfigError(f"{field}.ranks", f"is {endpoint.ranks}", f"use an int of 1 to {MOST_RANKS}")
    for name, address in (("endpoint", endpoint.endpoint), ("replay", endpoint.replay)):
        if address is not None:
            _check_address(address, endpoint.ranks, f"{field}.{name}")
    return endpoint


def _check_address(address: str, ranks: int, field: str) -> None:
    reason = unusable(address, ranks)
    if reason is not None:
        raise ConfigError(field, f"is {address!r}, which {reason}", "write it as the engine does: tcp://HOST:PORT")


def unusable(address: str, ranks: int = 1) -> str | None:
    """Why an address cannot be one of so many ranks, as the end of a sentence; ``None`` if it can.

    >>> unusable("tcp://*:5557"), unusable("tcp://h:70000")
    (None, 'has a port that is no number from 1 to 65535')
    """
    if not address.startswith(SCHEMES):
        return "is no ZeroMQ endpoint (tcp://HOST:PORT or ipc://PATH)"
    if not address.startswith("tcp://"):
        return None if ranks == 1 else "is one file for several ranks: with tcp:// each has a port of its own"
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port:
        return "has no port, or no host"
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        return "has a port that is no number from 1 to 65535"
    return None if int(port) + ranks <= 65536 else f"leaves no ports for {ranks} ranks behind it"


def rank_address(address: str, rank: int) -> str:
    """The address of one rank: the engines add its number to the port."""
    if not rank:
        return address
    base, _, port = address.rpartition(":")
    return f"{base}:{int(port) + rank}"


def seen_from_here(address: str, host: str) -> str:
    """An address that the engine binds, as one to connect to: a wildcard is replaced by ``host``."""
    if not address.startswith("tcp://"):
        return address
    name, _, port = address.removeprefix("tcp://").rpartition(":")
    if name not in WILDCARDS:
        return address
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"


def discover(base_url: str, timeout_s: float = 5.0) -> tuple[EventEndpoint, ...]:
    """The publishers of the engine at ``base_url``, by its ``GET /kv_event_sources`` (vLLM 0.32); empty if it has none
    or does not know the question. Blocks for at most twice ``timeout_s``.

    Raises:
        EngineError: it does not answer, or with something else.
    """
    url = urlsplit(base_url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=timeout_s)
    try:
        connection.request("GET", f"{url.path.rstrip('/').removesuffix('/v1')}/kv_event_sources")
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"GET {base_url}/kv_event_sources: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        return ()
    return read_sources(body, url.hostname or "127.0.0.1")


def read_sources(body: bytes, host: str) -> tuple[EventEndpoint, ...]:
    """The answer to ``GET /kv_event_sources``: a publisher for each data-parallel rank, its port already its own.

    Raises:
        EngineError: it is no such answer.
    """
    try:
        sources = json.loads(body)
        entries = [sources[key] for key in sorted(sources, key=int)]
        endpoints = tuple(_endpoint(entry, host) for entry in entries if entry.get("publisher", "zmq") == "zmq")
        return tuple(check_endpoint(each, "kv_event_sources") for each in endpoints)
    except ConfigError as error:
        raise EngineError(f"the engine's /kv_event_sources cannot be used: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        begins = body[:SHOWN_BYTES].decode("utf-8", "replace")
        what = f"is no JSON object of publishers by rank, but begins with {begins!r}"
        raise EngineError(f"the engine's answer to GET /kv_event_sources {what}") from error


def _endpoint(entry: Any, host: str) -> EventEndpoint:
    endpoint, replay, topic = entry["endpoint"], entry.get("replay_endpoint"), entry.get("topic") or ""
    if not isinstance(endpoint, str) or not isinstance(replay, str | None) or not isinstance(topic, str):
        raise TypeError("addresses and topics must be strings")
    return EventEndpoint(endpoint, replay, topic, host=host)
