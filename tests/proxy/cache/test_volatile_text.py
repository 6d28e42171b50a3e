"""A clock in the system text, before an engine that tells of its cache and before one that does not, over sockets."""

from __future__ import annotations

import pytest

from prefixpilot.volatile.base import VolatileRules

from ..support import fetch, metric
from .support import PAGE, followed, texts

BLOCKS = texts(4, 40)
FRONT = "Answer from the documents, in full sentences, and name the one that you used.\nCurrent time: 2026-11-30 09:0"
REST = "Where two documents differ, the newer one counts. Where none of them helps, say so, and ask for another one."


@pytest.mark.parametrize("events", ["named", "off"])
def test_it_is_the_cause_and_its_place_is_told_in_tokens(events: str) -> None:
    with followed(600, events=events, token_ids="engine", page_size=PAGE, cache_tokens=600 * PAGE) as setup:
        if events == "named":
            setup.in_state("EXACT")
        for minute in range(4):
            setup.ask(BLOCKS, system=f"{FRONT}{minute}:30\n{REST}", X_Request_Id=f"r{minute}")
        setup.settled()
        found = setup.plan("r3")["engine"]
        assert (found["cause"], found["verdict"]) == ("volatile-text", "exact")
        parting = found["parting"]
        assert (parting["kind"], parting["pointer"], parting["volatile"]) == ("clock", ["messages", 0, "content"], True)
        assert found["reported"] == parting["tokens"] // PAGE * PAGE
        assert parting["offset"] == len(FRONT)
        assert setup.stats()["causes"]["volatile-text"] >= 2
        text = fetch(setup.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_missed_tokens_total", cause="volatile-text") > 0


def test_a_rule_that_takes_it_out_ends_it() -> None:
    with followed(600, volatile=VolatileRules(clock="move")) as setup:
        setup.in_state("EXACT")
        for minute in range(3):
            setup.ask(BLOCKS, system=f"{FRONT}{minute}:30\nBe kind.", X_Request_Id=f"r{minute}")
        setup.settled()
        moved = setup.plan("r2")["engine"]["parting"]
        assert moved["offset"] > len(FRONT), "the line stands behind the rest of its text now"


def test_without_it_nothing_parts() -> None:
    with followed(600) as setup:
        setup.in_state("EXACT")
        for number in range(3):
            setup.ask(BLOCKS, X_Request_Id=f"r{number}")
        setup.settled()
        found = setup.plan("r2")["engine"]
        assert (found["cause"], found["parting"]) == ("none", None)
