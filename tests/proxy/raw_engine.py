"""An engine of raw sockets: it notes requests byte for byte, and answers with any bytes or none."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class RawRequest:
    """A request as it stood on the wire.

    Attributes:
        nth: of its connection, from 1.
        head: request line and headers, without the blank line.
        body: as decoded from chunks; ``complete`` is false if the connection ended within it.
    """

    nth: int
    head: bytes
    body: bytes
    complete: bool = True

    @property
    def lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")

    def header(self, name: bytes) -> list[bytes]:
        pairs = [line.partition(b": ") for line in self.lines[1:]]
        return [value for key, _, value in pairs if key.lower() == name]


Answer = Callable[[RawRequest], bytes | None]


def plain(status: bytes = b"200 OK", body: bytes = b"ok", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        engine: RawEngine = self.server.engine  # type: ignore[attr-defined]
        nth = 0
        while (request := self._read(nth := nth + 1)) is not None:
            engine.requests.append(request)
            answer = engine.answer(request)
            if answer is not None:
                self.wfile.write(answer)
                self.wfile.flush()
            if answer is None or engine.hangs_up(request) or not request.complete:
                return

    def _read(self, nth: int) -> RawRequest | None:
        lines = []
        while (line := self.rfile.readline()) not in (b"", b"\r\n"):
            lines.append(line.removesuffix(b"\r\n"))
        if not lines:
            return None
        request = RawRequest(nth, b"\r\n".join(lines), b"")
        body, complete = self._body(request)
        return RawRequest(nth, request.head, body, complete)

    def _body(self, request: RawRequest) -> tuple[bytes, bool]:
        if request.header(b"transfer-encoding"):
            return self._chunks()
        length = int((request.header(b"content-length") or [b"0"])[0])
        body = self.rfile.read(length)
        return body, len(body) == length

    def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while size := self.rfile.readline().strip():
            body += self.rfile.read(int(size, 16))
            self.rfile.readline()
            if int(size, 16) == 0:
                return body, True
        return body, False


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that goes away is none."""


class RawEngine:
    """Answers each request with ``answer(request)``; ``None`` closes the connection without a byte.

    Args:
        port: to listen on; 0 takes a free one.

    Attributes:
        hangs_up: whether to close the connection after the answer to a request, without having said so.
    """

    def __init__(self, answer: Answer = lambda request: plain(), port: int = 0) -> None:
        self.requests: list[RawRequest] = []
        self.answer = answer
        self.hangs_up: Callable[[RawRequest], bool] = lambda request: False
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.engine = self  # type: ignore[attr-defined]
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RawEngine:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class RawClient:
    """A connection to a proxy on which any bytes can be sent."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.socket.close()

    def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """Send it; status line, and body (of an answer that says its length)."""
        self.socket.sendall(data)
        return self.read()

    def read(self) -> tuple[bytes, bytes]:
        lines = []
        while (line := self._file.readline()) not in (b"", b"\r\n"):
            lines.append(line.strip())
        length = next((int(x.partition(b":")[2]) for x in lines if x.lower().startswith(b"content-length:")), 0)
        return (lines[0] if lines else b""), self._file.read(length)

    def ended(self) -> bool:
        """Whether the peer has closed the connection."""
        return self._file.read(1) == b""
