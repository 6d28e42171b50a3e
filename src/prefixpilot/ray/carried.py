"""A request as it goes from the door to a replica: what pickles of its ASGI scope, and its body. Without Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from prefixpilot.proxy.wire.exchange import Receive, Scope, Send

AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEPT: Final = ("type", "http_version", "method", "scheme", "query_string", "headers", "client", "server")


class Carried(NamedTuple):
    """A whole request.

    Attributes:
        scope: of ASGI, without what belongs to the server that took the request; its path is that of the application,
            without the prefix under which Serve has it.
        body: all of it.
    """

    scope: dict[str, Any]
    body: bytes

    @property
    def path(self) -> bytes:
        """As on the wire, still percent-encoded, without the query."""
        path: bytes = self.scope["raw_path"]
        return path


def carried_of(scope: Scope, body: bytes) -> Carried:
    """What is carried of a request that came in under ``scope["root_path"]``."""
    kept = {name: scope[name] for name in _KEPT if name in scope}
    kept["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return Carried({**kept, **_paths(scope)}, body)


def below_root(app: AsgiApp) -> AsgiApp:
    """The app, which sees paths without the prefix under which the server has it."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, **_paths(scope)} if scope["type"] == "http" else scope, receive, send)

    return serve


def _paths(scope: Scope) -> dict[str, Any]:
    root: str = scope.get("root_path", "")
    raw = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    path = _without(raw.partition(b"?")[0], quote(root).encode("ascii"))
    return {"raw_path": path, "path": _without(scope["path"], root), "root_path": ""}


def _without(path: Any, root: Any) -> Any:
    """A path below a root; as it is where it is not below it, as some servers give it."""
    slash = root[:0] + ("/" if isinstance(root, str) else b"/")
    if root and (path == root or path.startswith(root + slash)):
        return path[len(root) :] or slash
    return path
