"""The proxy: an HTTP server in front of an engine, that plans the ``context_blocks`` of requests in four
APIs.

Settings load nothing; the server, and all that it needs, is imported when it is first asked for (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prefixpilot.proxy.settings import ProxySettings

if TYPE_CHECKING:
    from prefixpilot.proxy.server import RunningProxy, serve, serve_in_thread

__all__ = ["ProxySettings", "RunningProxy", "serve", "serve_in_thread"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("prefixpilot.proxy.server"), name)
