"""Random work for a pilot, and what came of it, step by step, as digests that two builds of the package can compare.

    python -m tests.compiled.workloads

prints as JSON which build it ran and what it did.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Final

from prefixpilot import COMPILED, Constraints, ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.core import ConversationId, RequestId, TenantId

CONFIGS: Final[dict[str, PilotConfig]] = {
    "default": PilotConfig(),
    "bounded": PilotConfig(max_contexts=40, max_blocks=30, cache_tokens=9_000),
    "gate": PilotConfig(gate=True, annotate="all", cache_tokens=20_000),
    "ids": PilotConfig(labels="ids", tail="mix", normalization="whitespace"),
    "chain": PilotConfig(tail="chain", annotate=0, max_displacement=3),
    "popularity": PilotConfig(tail="popularity", schedule="paper"),
    "paper": PilotConfig(planner="paper", matcher="paper", schedule="paper", tail="relevance"),
}
REQUESTS: Final = 700
"""Of each: enough for the trial of policies to move from all requests on to its bursts."""
_BLOCKS: Final = 60
_TENANTS: Final = (TenantId("a"), TenantId("b"))


def steps(config: PilotConfig, seed: int) -> list[str]:
    """Digests of every plan and, now and then, of the whole state."""
    rng = random.Random(seed)
    pilot = ContextPilot(config)
    result = []
    for number, request in enumerate(_requests(rng)):
        if number % 50 == 20:
            batch = [_request(rng, f"{number}-{i}") for i in range(12)]
            result += [_digest(pilot.propose_batch(batch)), _digest(pilot.optimize_batch(batch))]
        result.append(_digest(pilot.propose(request), pilot.optimize(request)))
        if number % 7 == 0:
            result.append(_digest(pilot.evict([f"{number - back}" for back in (0, 5, 9)])))
        if number % 9 == 4:
            result.append(_digest(pilot.shorten(f"{number - 2}", number % 4)))
        if number % 100 == 99:
            state = json.loads(json.dumps(pilot.snapshot()))
            result.append(_digest(state))
            pilot = ContextPilot(config)
            pilot.restore(state)
    pilot.check_invariants()
    return result


def _requests(rng: random.Random) -> Iterator[Request]:
    for number in range(REQUESTS):
        yield _request(rng, str(number))


def _request(rng: random.Random, name: str) -> Request:
    """Ids of all kinds, texts, repeats, none at all; a conversation or constraints now and then."""
    count = rng.choice((0, 1, 3, 8, 8, 15))
    weights = list(accumulate((i + 1) ** -0.7 for i in range(_BLOCKS)))
    blocks = tuple(_block(number) for number in rng.choices(range(_BLOCKS), cum_weights=weights, k=count))
    conversation = ConversationId(f"c{rng.randrange(5)}") if rng.random() < 0.2 else None
    constraints = Constraints()
    if count > 3 and rng.random() < 0.2:
        start, stop = sorted(rng.sample(range(1, count), 2))
        constraints = Constraints(groups=(tuple(range(start, stop)),), first=0, max_displacement=rng.choice((None, 4)))
    return Request(
        blocks, RequestId(name), conversation, rng.choice(_TENANTS), rng.choice(("", "m2")), constraints=constraints
    )


def _block(number: int) -> ContextBlock:
    tokens = 300 + 13 * number % 800
    match number % 4:
        case 0:
            return ContextBlock(id=number, tokens=tokens)
        case 1:
            return ContextBlock(id=f"näme {number}", tokens=tokens)
        case 2:
            return ContextBlock(id=bytes([number]), tokens=tokens)
        case _:
            return ContextBlock(text=f"text  of {number // 8}", title="T" if number % 8 == 3 else None)


def _digest(*what: object) -> str:
    return blake2b(repr(what).encode(), digest_size=8).hexdigest()


def outcome() -> dict[str, Any]:
    """What this build does."""
    return {"compiled": COMPILED, "steps": {name: steps(config, 7) for name, config in CONFIGS.items()}}


def distinct_neighbours(digests: list[str]) -> int:
    """How often a step is not as the one before: a workload on which all is the same would show nothing."""
    return sum(before != after for before, after in pairwise(digests))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(outcome()))
