"""The arms of a comparison: what is sent for a request, in which order, and to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from prefixpilot.bench.comparison.prepared import BenchRequest
from prefixpilot.config import PilotConfig
from prefixpilot.core import ConversationId, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.blocks import FIELD

ArmName = Literal["arrival", "order", "annotated", "deduped", "scheduled"]
ARMS: Final[tuple[ArmName, ...]] = get_args(ArmName)

DESCRIPTIONS: Final[Mapping[ArmName, str]] = {
    "arrival": "the given order in the same template: the engine's own prefix cache",
    "order": "ordered, without the sentence that tells the ranking, nothing left out",
    "annotated": "ordered, with that sentence",
    "deduped": "what `serve` does: and what an earlier turn holds is a reference",
    "scheduled": "what `plan` does: all of it, all requests planned and sent as one batch",
}

Message: TypeAlias = Mapping[str, str]


class Outgoing(NamedTuple):
    """One request of an arm, ready to send.

    Attributes:
        number: of the request in arrival order.
        text: what the user says, blocks and all; ``None``: the proxy puts the blocks in.
    """

    number: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Arm:
    """How an arm sends.

    Attributes:
        name: see :data:`DESCRIPTIONS`.
        through_proxy: the blocks go to the proxy; else their rendered text goes to the engine.
        headers: of each request.
        annotate: the proxy's setting of that name; ``None``: its default.
    """

    name: ArmName
    through_proxy: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    annotate: int | None = None


_OF: Final[Mapping[ArmName, Arm]] = {
    "arrival": Arm("arrival", headers=(("X-PrefixPilot-Mode", "off"),)),
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
    known = next((arm for arm in ARMS if arm == name), None)
    if known is None:
        raise ConfigError("arms", f"has {name!r}", f"use some of: {', '.join(ARMS)}")
    return _OF[known]


def outgoing(arm: Arm, requests: Sequence[BenchRequest], cache_tokens: int | None) -> list[Outgoing]:
    """The requests in the order in which the arm sends them."""
    if arm.through_proxy:
        return [Outgoing(request.number, None) for request in requests]
    pilot = ContextPilot(PilotConfig(cache_tokens=cache_tokens))
    planned = pilot.optimize_batch(
        Request(request.blocks, RequestId(str(request.number)), ConversationId(request.session)) for request in requests
    )
    texts = [(entry.position, render_blocks(entry.plan), requests[entry.position].question) for entry in planned]
    return [Outgoing(position, f"{blocks}\n\n{asked}" if blocks else asked) for position, blocks, asked in texts]


def body_of(
    request: BenchRequest, text: str | None, history: Sequence[Message], more: Mapping[str, Any]
) -> dict[str, Any]:
    """The chat body. ``history``: what was said before; ``more``: model, bound of the reply."""
    said = {"role": "user", "content": request.question if text is None else text}
    body: dict[str, Any] = {**more, "messages": [*history, said]}
    if text is None:
        body[FIELD] = [
            {"text": block.text, **({} if block.title is None else {"title": block.title})} for block in request.blocks
        ]
    return body
