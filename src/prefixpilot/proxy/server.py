"""The proxy on a port: uvicorn, in a thread or as the whole process. Start, drain and stop have bounds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Final

from prefixpilot.errors import ConfigError, EngineError, MissingExtraError
from prefixpilot.pilot import ContextPilot
from prefixpilot.proxy.app import ProxyApp, create_app
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.wire.client import Refuse, client_protocol

try:
    import uvicorn
except ImportError:
    raise MissingExtraError("uvicorn", 'pip install "prefixpilot[proxy]"') from None
_protocol: Callable[[float, Refuse], type[asyncio.Protocol]] = client_protocol
with contextlib.suppress(MissingExtraError):  # without httptools h11 reads all requests
    from prefixpilot.proxy.wire.plain import plain_protocol

    _protocol = plain_protocol

START_TIMEOUT_S: Final = 10.0
STOP_SLACK_S: Final = 5.0


class RunningProxy:
    """A proxy in a thread of its own, from ``start`` to ``stop``; a context manager.

    Attributes:
        app: the app that it serves.
        url: ``http://HOST:PORT``, without ``/v1``; the port that it really got.
    """

    def __init__(self, app: ProxyApp) -> None:
        self.app = app
        self._listener = listen(app.settings)
        self.url = _url(app.settings.host, self._listener.getsockname()[1])
        self._server = _server(app)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="prefixpilot-proxy", daemon=True
        )

    @property
    def running(self) -> bool:
        """Whether the thread serves."""
        return self._thread.is_alive()

    def start(self) -> RunningProxy:
        """Returns once it listens. Raises EngineError past the bound."""
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise EngineError(f"the proxy was not up within {START_TIMEOUT_S:g} s; its log says why")
            time.sleep(0.005)
        return self

    def missing(self) -> str | None:
        """What is missing for requests to be answered, as ``GET /readyz`` says; ``None``: nothing. Not a request."""
        return self._asked(self.app.missing(), "the proxy does not answer")

    def first_model(self) -> str | None:
        """The first of the models that the engine lists; ``None`` if it lists none. Not a request to the proxy."""
        return self._asked(self.app.first_model(), None)

    def _asked(self, question: Coroutine[Any, Any, str | None], unanswered: str | None) -> str | None:
        """The answer of the app on its own loop, within a bound."""
        loop = self.app.loop
        if loop is None or not self.running:
            question.close()
            return unanswered
        answer = asyncio.run_coroutine_threadsafe(question, loop)
        try:
            return answer.result(2 * self.app.settings.ready_timeout + STOP_SLACK_S)
        except (TimeoutError, CancelledError):
            answer.cancel()
            return unanswered

    def stop(self) -> None:
        """Drain and end. Requests in flight get ``drain_timeout`` seconds; a second stop does nothing."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(self.app.settings.drain_timeout + STOP_SLACK_S)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(STOP_SLACK_S)
        self._listener.close()

    def __enter__(self) -> RunningProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve_in_thread(
    settings: ProxySettings, *, pilot: ContextPilot | None = None, app: ProxyApp | None = None
) -> RunningProxy:
    """A proxy to use as a context manager: ``with serve_in_thread(settings) as proxy: proxy.url``.

    Args:
        app: serve this one, whose settings are then used.

    Raises:
        ConfigError: the port cannot be bound.
    """
    return RunningProxy(app or create_app(settings, pilot))


def serve(
    settings: ProxySettings, *, pilot: ContextPilot | None = None, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, drain, and return. For the main thread.

    Args:
        on_listening: called with the URL once the port is bound.

    Raises:
        ConfigError: the port cannot be bound.
    """
    app = create_app(settings, pilot)
    with contextlib.closing(listen(settings)) as listener:
        if on_listening is not None:
            on_listening(_url(settings.host, listener.getsockname()[1]))
        _server(app).run([listener])


class _Server(uvicorn.Server):
    """Takes SIGINT and SIGTERM, and does not raise them again afterwards: the caller has still to clean up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _server(app: ProxyApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=_protocol(app.settings.receive_timeout, app.refuse),
            h11_max_incomplete_event_size=app.settings.max_header_bytes,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=65,
            timeout_graceful_shutdown=max(1, round(app.settings.drain_timeout)),
        )
    )


def listen(settings: ProxySettings) -> socket.socket:
    """A listening socket. Raises ConfigError: the port cannot be bound."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
        # asyncio sets TCP_NODELAY on connections of sockets that say their protocol, and create_server leaves it at 0.
        # Without it every answer on a kept connection waits some 40 ms for the client's delayed acknowledgement.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())
    except OSError as error:
        raise ConfigError(
            "port",
            f"{settings.host}:{settings.port} cannot be bound ({error.strerror or error})",
            "end what listens there, or choose another port (0 takes a free one)",
        ) from None


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
