"""Which engine made which response (OpenAI Responses): only that one has it, and can go on from it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from prefixpilot.apis import RESPONSES
from prefixpilot.errors import InvariantError
from prefixpilot.proxy.cache.watch import read_body

MAX_RESPONSES: Final = 65_536
MAX_ID_CHARS: Final = 256
"""A longer id is not remembered. Those of engines have about 40."""
_PREVIOUS: Final = "previous_response_id"


class ResponseHomes:
    """Engine by response id, of the last ``most`` that were made or asked for. One event loop uses it; O(1) a request.

    An id that another engine gives again is that engine's from then on.
    """

    def __init__(self, most: int = MAX_RESPONSES) -> None:
        self._most = most
        self._engine: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._engine)

    def made(self, response_id: str, engine: int) -> None:
        """It says that it has begun a response of that id."""
        if len(response_id) > MAX_ID_CHARS:
            return
        self._engine[response_id] = engine
        self._engine.move_to_end(response_id)
        if len(self._engine) > self._most:
            self._engine.popitem(last=False)

    def of(self, response_id: str | None) -> int | None:
        """Who made it; ``None``: nobody knows."""
        if response_id is None or response_id not in self._engine:
            return None
        self._engine.move_to_end(response_id)
        return self._engine[response_id]

    def check_invariants(self) -> None:
        """Raises InvariantError: it holds more than its bound, or what it should not hold."""
        if len(self._engine) > self._most or any(len(known) > MAX_ID_CHARS for known in self._engine):
            raise InvariantError(f"holds {len(self._engine)} responses of {self._most}")


def previous_of(document: Mapping[str, Any]) -> str | None:
    """The response that a body goes on from; ``None``: it names none."""
    given = document.get(_PREVIOUS)
    return given if isinstance(given, str) else None


def named_in(path: bytes, body: object) -> str | None:
    """The response that a request beside the four APIs is about: ``/v1/responses/ID`` and what stands below it, or what
    a body below ``/v1/responses`` goes on from. ``None``: none. O(body)."""
    for root in RESPONSES.paths:
        if path.startswith(root + b"/"):
            previous = previous_of(read_body(body)) if isinstance(body, bytes) else None
            return previous or unquote(path[len(root) + 1 :].partition(b"/")[0].decode("latin-1"))
    return None
