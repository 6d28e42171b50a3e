"""The proxy as a Ray Serve application: doors that take and route requests, and proxy replicas that plan them.

    serve run prefixpilot.ray.app:build engine=http://127.0.0.1:8000 scale.replicas=2

A door is small: it reads a request, and hands it to the replica that :class:`~prefixpilot.ray.router.PolicyRouter`
chooses. A proxy replica is the app of ``prefixpilot serve`` in an actor, unchanged; it talks to the engines by HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from prefixpilot.proxy.app import create_app
from prefixpilot.proxy.wire.exchange import Message
from prefixpilot.ray.carried import Carried
from prefixpilot.ray.door import Answer, Door
from prefixpilot.ray.hints import Hint
from prefixpilot.ray.hosting import HostedApp
from prefixpilot.ray.installed import serve
from prefixpilot.ray.settings import PROMPTLY, RaySettings, read_arguments

from ray.exceptions import RayActorError  # isort: skip
from ray.serve.config import RequestRouterConfig  # isort: skip
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError  # isort: skip

LOST = (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError)
FULL = (BackPressureError,)
ROUTER = "prefixpilot.ray.router:PolicyRouter"


class Pilot:
    """A proxy replica. Serve makes it, in an actor of its own."""

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Serve awaits it
        rank = serve.get_replica_context().rank
        self._hosted = HostedApp(create_app(settings.proxy(0 if rank is None else rank.rank)))
        await self._hosted.start()

    async def __call__(self, hint: Hint, request: Carried) -> AsyncIterator[list[Message]]:
        """Answer a request; ``hint`` was for the router."""
        async for messages in self._hosted.answer(request):
            yield messages

    async def __del__(self) -> None:
        await self._hosted.stop()


@serve.ingress()
class Entrance:
    """A door, in an actor of its own."""

    def __init__(self, pilots: Any, settings: RaySettings) -> None:
        self._pilots = pilots.options(stream=True)
        self._settings = settings

    def __serve_build_asgi_app__(self) -> Door:
        return Door(
            self._ask,
            lost=LOST,
            full=FULL,
            max_body_bytes=self._settings.max_body_bytes,
            receive_timeout=self._settings.receive_timeout,
        )

    def _ask(self, hint: Hint, request: Carried) -> Answer:
        answer: Answer = self._pilots.remote(hint, request)
        return answer


def build(args: Mapping[str, Any]) -> Any:
    """The application, for ``serve run``, ``serve.run`` and ``import_path`` of a ``serve.yaml``.

    Args:
        args: settings; see :func:`~prefixpilot.ray.settings.read_arguments`.

    Raises:
        ConfigError: a setting that cannot be used.
    """
    return application(read_arguments(args))


def application(settings: RaySettings) -> Any:
    """The same, of settings."""
    scale = settings.scale
    router = {"policy": scale.policy, "cache_tokens": settings.tokens_of_a_replica}
    pilots = serve.deployment(
        Pilot,
        name="pilots",
        num_replicas=scale.replicas,
        max_ongoing_requests=scale.max_ongoing,
        max_queued_requests=scale.max_queued,
        ray_actor_options={"num_cpus": scale.cpus},
        graceful_shutdown_timeout_s=settings.drain_timeout,
        **PROMPTLY,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER, request_router_kwargs=router),
    )
    doors = serve.deployment(
        Entrance,
        name="doors",
        num_replicas=scale.doors,
        max_ongoing_requests=settings.max_in_flight,
        ray_actor_options={"num_cpus": scale.door_cpus},
        graceful_shutdown_timeout_s=settings.drain_timeout,
        **PROMPTLY,
    )
    return doors.bind(pilots.bind(settings), settings)
