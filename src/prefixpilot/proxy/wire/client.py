"""What uvicorn keeps from an app, and a transparent proxy needs: the request target as sent, and the reason phrase."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from prefixpilot.errors import MissingExtraError

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("uvicorn", 'pip install "prefixpilot[proxy]"') from None

WIRE: Final = "prefixpilot.wire"
"""Key of the ASGI scope under which the app finds the :class:`ClientWire`."""


class ClientWire(h11.Connection):
    """A connection with a client.

    Attributes:
        target: of the request that is being answered, as sent.
        reason: phrase of the answer that comes next; ``None``: the usual one of its status.
    """

    target: bytes = b""
    reason: bytes | None = None

    def next_event(self) -> Any:
        """As h11, and note the target."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.target = event.target
        return event

    def send(self, event: Any) -> Any:
        """As h11, with our reason phrase."""
        reason, self.reason = self.reason, None
        if isinstance(event, h11.Response) and reason is not None and reason != event.reason:
            event = h11.Response(
                status_code=event.status_code, headers=event.headers, http_version=event.http_version, reason=reason
            )
        return super().send(event)


class ClientProtocol(H11Protocol):
    """Uvicorn's protocol over a :class:`ClientWire`, that the app finds in its scope."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        wire = self.conn = ClientWire(h11.SERVER, **_limit(config))
        app = self.app

        async def with_wire(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, WIRE: wire}, receive, send)

        self.app = with_wire


def _limit(config: uvicorn.Config) -> dict[str, int]:
    size = config.h11_max_incomplete_event_size
    return {} if size is None else {"max_incomplete_event_size": size}
