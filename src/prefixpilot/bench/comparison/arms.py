"""The arms of a comparison: what is sent for a request, in which order, and to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from prefixpilot.bench.comparison.others import Other, Sendings, check_sendings, sendings
from prefixpilot.bench.comparison.prepared import BenchRequest
from prefixpilot.config import PilotConfig
from prefixpilot.core import ConversationId, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.blocks import FIELD

Ours = Literal["order", "annotated", "deduped", "scheduled"]
ArmName = Literal["arrival", Other, Ours, "given"]
ARMS: Final[tuple[ArmName, ...]] = ("arrival", *get_args(Other), *get_args(Ours))
"""Those that need nothing from outside."""
ALL_ARMS: Final[tuple[ArmName, ...]] = (*ARMS, "given")

DESCRIPTIONS: Final[Mapping[ArmName, str]] = {
    "arrival": "the given order in the same template: the engine's own prefix cache",
    "queue": "that, and of 128 waiting requests the one with the longest cached prefix is next: an engine's own policy",
    "popularity": "the blocks seen most often so far first",
    "walk": "a walk down what was sent, each time to the block used most often",
    "order": "ordered, without the sentence that tells the ranking, nothing left out",
    "annotated": "ordered, with that sentence",
    "deduped": "what `serve` does: and what an earlier turn holds is a reference",
    "scheduled": "what `plan` does: all of it, all requests planned and sent as one batch",
    "given": "the orders of a file, in the same template",
}

Message: TypeAlias = Mapping[str, str]


class Outgoing(NamedTuple):
    """One request of an arm, ready to send.

    Attributes:
        number: of the request in arrival order.
        text: what the user says, blocks and all; ``None``: the proxy puts the blocks in.
        order: positions of the blocks as they are given to the proxy; ``None``: all, in the given order.
    """

    number: int
    text: str | None = None
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """How an arm sends.

    Attributes:
        name: see :data:`DESCRIPTIONS`.
        through_proxy: the blocks go to the proxy; else their rendered text goes to the engine.
        headers: of each request.
        annotate: the proxy's setting of that name; ``None``: its default.
        other: whose way of ordering it is; ``None``: as given, or ours.
    """

    name: ArmName
    through_proxy: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    annotate: int | None = None
    other: Other | None = None


_OFF: Final = (("X-PrefixPilot-Mode", "off"),)
_OF: Final[Mapping[ArmName, Arm]] = {
    "arrival": Arm("arrival", headers=_OFF),
    "queue": Arm("queue", headers=_OFF, other="queue"),
    "popularity": Arm("popularity", headers=_OFF, other="popularity"),
    "walk": Arm("walk", headers=_OFF, other="walk"),
    "given": Arm("given", headers=_OFF),
    "order": Arm("order", headers=(("X-PrefixPilot-Dedupe", "off"),), annotate=0),
    "annotated": Arm("annotated", headers=(("X-PrefixPilot-Dedupe", "off"),)),
    "deduped": Arm("deduped"),
    "scheduled": Arm("scheduled", through_proxy=False),
}


def arm_of(name: str) -> Arm:
    """The arm of that name.

    Raises:
        ConfigError: there is none.
    """
    known = next((arm for arm in ALL_ARMS if arm == name), None)
    if known is None:
        raise ConfigError("arms", f"has {name!r}", f"use some of: {', '.join(ALL_ARMS)}")
    return _OF[known]


def outgoing(
    arm: Arm, requests: Sequence[BenchRequest], cache_tokens: int | None, given: Sendings = ()
) -> list[Outgoing]:
    """The requests in the order in which the arm sends them. ``given``: for the arm of that name.

    Raises:
        ConfigError: ``given`` is of other requests.
    """
    if arm.name == "given":
        check_sendings(given, requests)
        return [Outgoing(each.number, order=each.order) for each in given]
    if arm.other is not None:
        return [Outgoing(each.number, order=each.order) for each in sendings(arm.other, requests, cache_tokens)]
    if arm.through_proxy:
        return [Outgoing(request.number) for request in requests]
    pilot = ContextPilot(PilotConfig(cache_tokens=cache_tokens))
    planned = pilot.optimize_batch(
        Request(request.blocks, RequestId(str(request.number)), ConversationId(request.session)) for request in requests
    )
    texts = [(entry.position, render_blocks(entry.plan), requests[entry.position].question) for entry in planned]
    return [Outgoing(position, f"{blocks}\n\n{asked}" if blocks else asked) for position, blocks, asked in texts]


def body_of(
    request: BenchRequest, send: Outgoing, history: Sequence[Message], more: Mapping[str, Any]
) -> dict[str, Any]:
    """The chat body. ``history``: what was said before; ``more``: model, bound of the reply."""
    said = {"role": "user", "content": request.question if send.text is None else send.text}
    body: dict[str, Any] = {**more, "messages": [*history, said]}
    if send.text is None:
        order = range(len(request.blocks)) if send.order is None else send.order
        body[FIELD] = [
            {"text": block.text, **({} if block.title is None else {"title": block.title})}
            for block in (request.blocks[i] for i in order)
        ]
    return body
