"""Engines as Ray Serve applications, each on a path of its own: where to send requests stays the same when Serve starts
one anew.

    serve run prefixpilot.ray.engines:build kind=embedded --route-prefix /engines/0

An engine with a Serve application of its own (Ray Serve LLM) needs nothing of this: its path is an engine's URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefixpilot.errors import EngineError
from prefixpilot.proxy.app import create_app
from prefixpilot.proxy.server import serve_in_thread
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.ray.carried import AsgiApp, below_root
from prefixpilot.ray.installed import serve
from prefixpilot.ray.settings import EMBEDDED, PROMPTLY, EngineSettings, arguments


def build(args: Mapping[str, Any]) -> Any:
    """The application, for ``serve run``, ``serve.run`` and ``import_path`` of a ``serve.yaml``.

    Args:
        args: fields of :class:`EngineSettings`.

    Raises:
        ConfigError: a setting that cannot be used.
    """
    settings = arguments(EngineSettings, args)
    options = {"num_cpus": settings.cpus}
    one = serve.deployment(
        Engine, name="engine", num_replicas=1, max_ongoing_requests=1000, ray_actor_options=options, **PROMPTLY
    )
    return one.bind(settings)


@serve.ingress()
class Engine:
    """An engine on this node's loopback, and an app that passes everything on to it. In an actor of its own."""

    def __init__(self, settings: EngineSettings) -> None:
        self._engine = _embedded(settings) if settings.kind == EMBEDDED else _simulated(settings)
        self._running = self._engine.__enter__()
        if settings.port is not None:
            passing_on = replace(self._passing_on, host=settings.host, port=settings.port)
            self._own_port = serve_in_thread(passing_on).start()

    @property
    def _passing_on(self) -> ProxySettings:
        return ProxySettings(engine=self._running.base_url, mode="off", slots="off")

    def __serve_build_asgi_app__(self) -> AsgiApp:
        return below_root(create_app(self._passing_on))

    def check_health(self) -> None:
        """Asked by Serve, which starts another engine in the place of one that raises."""
        if not getattr(self._running, "running", True):
            raise EngineError("the engine has ended")


def _embedded(settings: EngineSettings) -> AbstractContextManager[Any]:
    from prefixpilot.engines.llamacpp import EmbeddedEngine
    from prefixpilot.engines.models import resolve_model

    model = resolve_model(None if settings.model is None else Path(settings.model))
    return EmbeddedEngine(model, context_tokens=settings.context, threads=settings.threads)


def _simulated(settings: EngineSettings) -> AbstractContextManager[Any]:
    from prefixpilot.prefix_cache import RadixPrefixCache
    from prefixpilot.testing import SimulatedEngine

    return SimulatedEngine(
        cache=RadixPrefixCache(settings.cache_tokens),
        chunk_delay_s=settings.chunk_delay,
        prefill_tokens_per_s=settings.prefill_rate,
    )
