"""An ASGI app on a free loopback port, served by uvicorn in a thread of its own. Start and stop have bounds."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from prefixpilot.errors import EngineError, MissingExtraError

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("uvicorn", 'pip install "prefixpilot[proxy]"') from None

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class LoopbackServer:
    """Serves ``app`` from ``start`` to ``stop``; ``transport`` gives the app a request's connection below HTTP."""

    def __init__(self, app: App, timeout_s: float = 10.0) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._transports: dict[Any, asyncio.Transport] = {}
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Returns the URL, without a trailing slash.

        Raises:
            EngineError: already started, or not up within the bound.
        """
        if self._thread is not None:
            raise EngineError("the server is already started")
        listener = socket.create_server(("127.0.0.1", 0))
        # With its protocol named, so that asyncio sets TCP_NODELAY on its connections.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())
        self._server = uvicorn.Server(self._config())
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="loopback", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + self._timeout_s
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                listener.close()
                self.stop()
                raise EngineError(f"the server was not up after {self._timeout_s:g} s")
            time.sleep(0.005)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def stop(self) -> None:
        """Close all connections and end the thread, if there is one. Raises EngineError past the bound."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        server.should_exit = True
        thread.join(self._timeout_s)
        if thread.is_alive():
            raise EngineError(f"the server did not end within {self._timeout_s:g} s")

    def transport(self, scope: Scope) -> asyncio.Transport:
        """The connection on which a request came."""
        return self._transports[tuple(scope["client"])]

    def _config(self) -> uvicorn.Config:
        transports = self._transports

        class Protocol(H11Protocol):
            """Uvicorn's protocol, which also notes each connection by its peer's address."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                transports[transport.get_extra_info("peername")] = transport
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                transports.pop(self.transport.get_extra_info("peername"), None)
                super().connection_lost(exc)

        return uvicorn.Config(
            self._app,
            interface="asgi3",
            http=Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
