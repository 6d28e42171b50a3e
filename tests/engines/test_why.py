"""What stands in the way of following a source, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.engines.base import Continuity
from prefixpilot.engines.why import Standing, reason

WHOLE, ASKING, BROKEN = Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN
USUAL = Standing("tcp://e:1", "tcp://e:2", ASKING, 0, 0, connects=False, connected=True, answered=True, unanswered=0)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"continuity": WHOLE}, ""),
        ({}, "nothing has come from tcp://e:1 yet; what is missing is being asked for at tcp://e:2"),
        ({"unanswered": 1}, "at tcp://e:2, where nobody answers"),
        ({"replay": None, "continuity": BROKEN}, "it is not known what was cached before"),
        ({"connected": False}, "what answers there is no publisher of events"),
        ({"connected": False, "answered": False}, "nobody answers there"),
        ({"connected": False, "connects": True}, "no engine has connected there"),
        ({"batches": 4}, "is being asked for at tcp://e:2"),
        ({"batches": 4, "unanswered": 3}, "where nobody answers"),
        ({"batches": 4, "silent": True}, "tcp://e:1 told nothing of them; tcp://e:2 is being asked"),
        ({"batches": 4, "silent": True, "unanswered": 1}, "told nothing of them; tcp://e:2 does not answer"),
        ({"batches": 4, "silent": True, "replay": None}, "and tcp://e:1 told nothing of them"),
        ({"batches": 4, "silent": True, "connected": False}, "there is no connection to tcp://e:1"),
        ({"foreign": 3}, "nothing has come from tcp://e:1 yet but 3 messages that are no batches of events"),
        ({"batches": 4, "replay": None}, "batches of tcp://e:1 are missing, and no replay endpoint is set"),
        ({"batches": 4, "connected": False}, "there is no connection to tcp://e:1"),
        ({"batches": 4, "continuity": BROKEN, "lost": 3}, "3 batches of tcp://e:1 are lost (the engine does not keep"),
        ({"batches": 4, "continuity": BROKEN, "lost": 3, "replay": None}, "(no replay endpoint is set); the next"),
        ({"batches": 4, "continuity": BROKEN, "replay": None}, "what tcp://e:1 told before is not known"),
        ({"batches": 4, "continuity": BROKEN, "lost": 3, "unanswered": 1}, "asked for at tcp://e:2, where nobody ans"),
        ({"batches": 4, "continuity": BROKEN, "lost": 3, "unreadable": 3}, "3 batches of tcp://e:1 came and cannot be"),
        (
            {"batches": 4, "continuity": BROKEN, "lost": 5, "unreadable": 3},
            "2 batches of tcp://e:1 are lost (the engine does not keep them); 3 batches of tcp://e:1 came and cannot",
        ),
        (
            {"batches": 4, "continuity": BROKEN, "lost": 3, "connected": False},
            "mends it; there is no connection",
        ),
    ],
)
def test_reasons(case: dict[str, Any], said: str) -> None:
    found = reason(USUAL._replace(**case))
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize("more", [{}, {"replay": None}, {"unanswered": 2}])
def test_of_what_came_unreadable_it_is_not_said_that_it_was_asked_for(more: dict[str, Any]) -> None:
    found = reason(USUAL._replace(batches=9, continuity=BROKEN, lost=8, unreadable=8, **more))
    assert "does not keep" not in found and "replay" not in found and "tcp://e:2" not in found
