"""Requests whose pages the engine must have told of, and has not, while it told of nothing at all. Pure."""

from __future__ import annotations

from math import inf


class Silence:
    """How long nothing has come, counted in waits that do not overlap. Not thread-safe: one owner.

    Many requests that are answered together wait together, and one late batch ends all their waits; so of those one
    counts, and the next is one that went out after it had been given up.

    Attributes:
        waits: in a row, with nothing told since the first of them began.
    """

    def __init__(self) -> None:
        self.waits = 0
        self._ended_at = -inf

    def waited(self, since: float, now: float) -> None:
        """A request that went out at ``since`` was waited for until now in vain. Seconds of one clock."""
        if since >= self._ended_at:
            self.waits, self._ended_at = self.waits + 1, now

    def heard(self) -> None:
        """Something was told."""
        self.waits, self._ended_at = 0, -inf
