"""Conversations by number: the same seed and number give the same conversation, whatever ran before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple

from .blocks_script import Talk
from .ordinary_script import Traffic
from .reading import Violation
from .routes import Direct, Route

Script = Literal["blocks", "ordinary"]
PER_PROXY: Final = 200
"""Conversations that one proxy serves: its index and its ledgers are shared by them, as those of a server are."""
_STEPS: Final = (3, 4, 6)


class Finding(NamedTuple):
    """A promise that was broken, and how to see it again."""

    seed: int
    number: int
    script: Script
    violation: Violation


@dataclass(slots=True)
class Run:
    """Conversations one after another.

    Args:
        steps: makes the collaborators of each proxy, to put in the place of the ordinary ones.
    """

    seed: int
    steps: Callable[[], Mapping[str, Any]] = dict
    strict: bool = True
    seen: Counter[str] = field(default_factory=Counter)
    fail_opens: float = 0
    _route: Direct | None = None

    def converse(self, script: Script, number: int) -> Finding | None:
        """One conversation of several clients; what it broke, if it broke something."""
        if self._route is None or number % PER_PROXY == 0:
            self._renew()
        assert self._route is not None
        violation = converse(self._route, script, self.seed, number, self.seen, strict=self.strict)
        return None if violation is None else Finding(self.seed, number, script, violation)

    def _renew(self) -> None:
        self.close()
        self._route = Direct(window=True, **self.steps())

    def close(self) -> None:
        """Count what the last proxy failed at."""
        if self._route is not None:
            self.fail_opens += self._route.fail_opens()
            self._route = None


def converse(
    route: Route, script: Script, seed: int, number: int, seen: Counter[str], *, strict: bool = True
) -> Violation | None:
    """One conversation of several clients on a route. Four ordinary ones in a row share their texts."""
    rng = Random(f"{seed}/{number}")
    talk: Talk | Traffic
    if script == "blocks":
        talk = Talk(rng, route, f"w{number}", strict=strict)
    else:
        talk = Traffic(rng, route, f"w{number // 4}", strict=strict)
    try:
        talk.run(rng.choice(_STEPS))
    except Violation as violation:
        return violation
    finally:
        seen.update({**talk.seen, "conversations": 1, "clients": len(talk.clients)})
    return None
