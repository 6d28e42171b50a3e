"""Serve's request router with one of our policies: the choice of a proxy replica for each request."""

from __future__ import annotations

from typing import Any, Final

from prefixpilot.ray import installed as installed  # says what to install where Ray is missing
from prefixpilot.ray.hints import Hint
from prefixpilot.ray.policies import policy_of
from prefixpilot.routing import Load, Router, Seats

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica  # isort: skip

NO_HINT: Final = Hint()


class PolicyRouter(RequestRouter):
    """Ranks replicas by a policy of :mod:`prefixpilot.routing`: its choice first, then the others, least busy first.

    One for each process that sends requests (each door), on its event loop; what the policy learns is its own. Every
    replica has a seat, which another takes when it dies.
    """

    def initialize_state(self, policy: str = "context-aware", cache_tokens: int | None = None) -> None:
        """Called by Serve with ``request_router_kwargs``. Raises ConfigError."""
        self._policy: Router = policy_of(policy, cache_tokens)
        self._seats = Seats()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas have come or gone."""
        super().update_replicas(replicas)
        self._seat()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Serve when one does not answer any more."""
        super().on_replica_actor_died(replica_id)
        self._seat()

    def _seat(self) -> None:
        for index in self._seats.update(replica_id.unique_id for replica_id in self.curr_replicas).taken:
            self._policy.lost(index)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Called by Serve, again and again while those that are chosen have no room."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = [self._load(None if name is None else by_name.get(name)) for name in self._seats.names]
        if not any(load.available for load in loads):
            return [candidate_replicas]
        request = _hint(pending_request).routed
        best = self._policy.route(request, loads).replica
        others = [index for index, load in enumerate(loads) if load.available and index != best]
        ranked = [best, *sorted(others, key=lambda index: (loads[index].in_flight, index))]
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[by_name[name]] for name in map(self._seats.names.__getitem__, ranked) if name is not None]

    def _load(self, replica: RunningReplica | None) -> Load:
        if replica is None:
            return Load(available=False)
        return Load(self.replica_queue_len_cache.get(replica.replica_id) or 0)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Called by Serve when a replica has taken a request."""
        names = self._seats.names
        if replica_id.unique_id in names:
            self._policy.sent(_hint(pending_request).routed, names.index(replica_id.unique_id))


def _hint(pending: PendingRequest | None) -> Hint:
    found = pending.args[0] if pending is not None and pending.args else None
    return found if isinstance(found, Hint) else NO_HINT
