"""Whether an engine is fit for requests: a count of failures in a row, and of looks that found it well. Pure."""

from __future__ import annotations

from prefixpilot.errors import InvariantError


class Health:
    """Of one engine. O(1) each; not thread-safe.

    Looks alone bring it back: while it gets no requests, none of them can say that it is well.

    Args:
        eject_after: failures in a row after which it is out.
        return_after: looks in a row that find it well, after which it is in again.

    Attributes:
        fit: whether it gets requests; it does from the beginning.
        ejections: how often it was taken out.
        met: failures ever.
    """

    def __init__(self, eject_after: int, return_after: int) -> None:
        self._eject_after = eject_after
        self._return_after = return_after
        self._failures = 0
        self._well = 0
        self.fit = True
        self.ejections = 0
        self.met = 0

    def failed(self) -> bool:
        """A look or a request failed. Whether it is out since now."""
        self._well = 0
        self.met += 1
        if not self.fit:
            return False
        self._failures += 1
        if self._failures < self._eject_after:
            return False
        self.fit, self._failures = False, 0
        self.ejections += 1
        return True

    def answered(self) -> None:
        """It answered a request."""
        self._failures = 0

    def looked_well(self, met: int) -> bool:
        """A look found it well. Whether it is in again since now.

        Args:
            met: failures when the look began. If there were more meanwhile, the look says nothing: they came later.
        """
        if met != self.met:
            return False
        self._failures = 0
        if self.fit:
            return False
        self._well += 1
        if self._well < self._return_after:
            return False
        self.fit, self._well = True, 0
        return True

    def check_invariants(self) -> None:
        """Raises InvariantError: a count has passed its bound without an effect."""
        if not 0 <= self._failures < self._eject_after or not 0 <= self._well < self._return_after:
            raise InvariantError(f"{self._failures} failures and {self._well} good looks in a row")
        if (self._failures and not self.fit) or (self._well and self.fit):
            raise InvariantError("counts towards what is so already")
