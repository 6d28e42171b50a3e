"""ZeroMQ sockets as one who follows an engine's events needs them: bounded, and told when the other side is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prefixpilot.engines.endpoints import EventEndpoint, seen_from_here
from prefixpilot.errors import ConfigError, MissingExtraError

try:
    import zmq
except ImportError:
    raise MissingExtraError("pyzmq", 'pip install "prefixpilot[proxy,kv-events]"') from None

HEARTBEAT_MS: Final = 2_000
"""How often the other side is asked whether it is there; a thread of ZeroMQ's own answers, however busy an engine."""
GONE_MS: Final = 10_000
"""What answers nothing for so long is gone, whatever TCP says: a cut line, a process that is held."""
MESSAGE_BYTES: Final = 64 << 20
QUEUED: Final = 100_000
"""Messages that wait in a socket; engines keep 10,000 for a replay."""
TURN: Final = 256
"""Messages taken from one socket before the others get their turn."""


def opened(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket that is connected to nobody yet."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVHWM, QUEUED)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    for bound in (zmq.HEARTBEAT_TIMEOUT, zmq.HANDSHAKE_IVL, zmq.CONNECT_TIMEOUT):
        socket.setsockopt(bound, GONE_MS)
    socket.setsockopt(zmq.IPV6, 1)
    return socket


def subscribe(socket: zmq.Socket[bytes], endpoint: EventEndpoint, address: str, field: str) -> None:
    """Take what is published at one rank's address, on whichever side binds there.

    Raises:
        ConfigError: the address cannot be used, or not bound now; ``field`` names the setting.
    """
    socket.setsockopt(zmq.SUBSCRIBE, endpoint.topic.encode())
    try:
        if endpoint.we_connect:
            socket.connect(seen_from_here(address, endpoint.host))
        else:
            socket.bind(address)
    except zmq.ZMQError as error:
        if endpoint.we_connect:
            remedy = 'write it as "endpoint" in the engine\'s --kv-events-config'
            raise ConfigError(field, f"{address} cannot be used ({error})", remedy) from None
        why = f"{address} cannot be bound here ({error}); an engine whose endpoint names a host connects to it"
        remedy = "write tcp://*:PORT if the engine's own endpoint is so, else an address of this machine"
        raise ConfigError(field, why, remedy) from None


def received(socket: zmq.Socket[bytes]) -> Iterable[list[bytes]]:
    """What has come to a socket, one turn's worth."""
    for _ in range(TURN):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
