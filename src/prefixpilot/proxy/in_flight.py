"""How many requests are under way, in all and of each tenant, and the refusal of what would be too many."""

from __future__ import annotations

from typing import Final

from prefixpilot.core import TenantId
from prefixpilot.errors import InvariantError
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.wire.headers import RawHeaders

RETRY_AFTER_S: Final = 1


class InFlight:
    """Counts requests while they are under way. Bounded by them. One event loop uses it.

    Args:
        max_all: of all tenants together.
        max_each: of one tenant; ``None`` for no bound.
    """

    def __init__(self, max_all: int, max_each: int | None) -> None:
        self._max_all = max_all
        self._max_each = max_each
        self._of: dict[TenantId, int] = {}
        self._all = 0

    def __len__(self) -> int:
        """Requests under way."""
        return self._all

    def enter(self, tenant: TenantId) -> None:
        """A request counts from here on, until its tenant leaves.

        Raises:
            RefusedError: 503 when the proxy has too many, 429 when the tenant has; with ``Retry-After``.
        """
        mine = self._of.get(tenant, 0)
        if self._all >= self._max_all:
            message = f"{self._max_all} requests are under way, and the proxy takes no more; try again"
            raise RefusedError(503, message, "server_error", None, "overloaded", _retry())
        if self._max_each is not None and mine >= self._max_each:
            message = f"{mine} requests of this tenant are under way, which is its bound; try again"
            raise RefusedError(429, message, "rate_limit_error", None, "rate_limit_exceeded", _retry())
        self._of[tenant] = mine + 1
        self._all += 1

    def leave(self, tenant: TenantId) -> None:
        """One of the requests that have entered is over."""
        self._all -= 1
        left = self._of[tenant] - 1
        if left:
            self._of[tenant] = left
        else:
            del self._of[tenant]

    def check_invariants(self) -> None:
        """Raises InvariantError: the counts do not add up."""
        if self._all != sum(self._of.values()) or min(self._of.values(), default=1) < 1:
            raise InvariantError(f"{self._all} requests under way, by tenant {self._of}")


def _retry() -> RawHeaders:
    return [(b"retry-after", str(RETRY_AFTER_S).encode("ascii"))]
