"""The proxy: an HTTP server in front of an engine, that plans the ``context_blocks`` of requests in four APIs."""

from prefixpilot.proxy.server import RunningProxy, serve, serve_in_thread
from prefixpilot.proxy.settings import ProxySettings

__all__ = ["ProxySettings", "RunningProxy", "serve", "serve_in_thread"]
