"""Other ways to order blocks and requests, as arms: for each the order in which requests go, and their blocks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from prefixpilot.bench import baselines
from prefixpilot.bench.comparison.prepared import BenchRequest
from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import BatchContext, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment

Other = Literal["queue", "popularity", "walk"]
BETWEEN_TURNS: Final = 64
"""Tokens of a question and its reply, where a queue looks at the history of a conversation."""


class Sending(NamedTuple):
    """One request, sent the way of an arm.

    Attributes:
        number: of the request in arrival order.
        order: positions of its blocks in the given order; each once.
    """

    number: int
    order: tuple[int, ...]


Sendings: TypeAlias = Sequence[Sending]


def sendings(name: Other, requests: Sequence[BenchRequest], cache_tokens: int | None) -> Sendings:
    """What the arm of that name sends, in its order."""
    if name == "queue":
        return [Sending(i, tuple(range(len(requests[i].blocks)))) for i in _queued(requests, cache_tokens)]
    contexts = [_context(request) for request in requests]
    ordered = baselines.popularity(contexts) if name == "popularity" else baselines.greedy_walk(contexts, cache_tokens)
    return [
        Sending(i, _positions(request, context))
        for i, (request, context) in enumerate(zip(requests, ordered, strict=True))
    ]


def read_sendings(path: Path) -> Sendings:
    """What a file says: JSON Lines, ``{"number": 3, "order": [2, 0, 1]}`` each, in the order in which they go.

    Raises:
        ConfigError: it cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        found = [json.loads(line) for line in lines]
        return [Sending(int(each["number"]), tuple(map(int, each["order"]))) for each in found]
    except OSError as error:
        raise ConfigError("orders", f"{path}: {error.strerror}", "give a file that can be read") from None
    except (ValueError, LookupError, TypeError):
        raise ConfigError(
            "orders", f"{path} is not as it should be", 'write {"number": 3, "order": [2, 0, 1]}'
        ) from None


def check_sendings(given: Sendings, requests: Sequence[BenchRequest]) -> None:
    """Each request once, each of its blocks once.

    Raises:
        ConfigError: no.
    """
    if sorted(each.number for each in given) != list(range(len(requests))):
        raise ConfigError("orders", f"name not each of {len(requests)} requests once", "number them from 0")
    for each in given:
        if sorted(each.order) != list(range(len(requests[each.number].blocks))):
            raise ConfigError("orders", f"request {each.number}: not each block once", "give positions from 0")


def _queued(requests: Sequence[BenchRequest], cache_tokens: int | None) -> list[int]:
    history: dict[str, list[Segment]] = {}
    prompts = []
    for request in requests:
        asked = Segment((request.number, "asked"), BETWEEN_TURNS)
        history.setdefault(request.session, []).extend([*baselines.segments(_context(request)), asked])
        prompts.append(list(history[request.session]))
    return baselines.longest_prefix_first(prompts, cache_tokens, [request.session for request in requests])


def _context(request: BenchRequest) -> BatchContext:
    """Distinct texts with their lengths, in the given order."""
    length = {block.text or "": estimate_tokens(block.text or "") for block in request.blocks}
    return BatchContext(RequestId(str(request.number)), tuple(length), tuple(length.values()))


def _positions(request: BenchRequest, context: BatchContext) -> tuple[int, ...]:
    """Blocks that come again stand last."""
    first: Mapping[str, int] = {block.text or "": i for i, block in reversed(list(enumerate(request.blocks)))}
    order = [first[str(key)] for key in context.blocks]
    again = [i for i in range(len(request.blocks)) if i not in set(order)]
    return (*order, *again)
