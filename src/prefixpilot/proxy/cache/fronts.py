"""The fronts of the prompts sent lately: what stands before their documents, and where a new one parts from them.

A prompt whose front changes from request to request is read from the cache only up to the change, whatever stands
behind it. Compared are texts, so that the place and the kind of the change can be told, and, where the engine's tokens
are known, tokens, so that it is known where the cached prefix ends.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from prefixpilot.apis.base import Message, Pointer, Prompt
from prefixpilot.core import Plan
from prefixpilot.prompts import render_block
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.volatile.divergence import Cause, Place, common_prefix, first_place

MAX_CHARS: Final = 65_536
"""Of a front that are kept; what lies behind is not compared."""
MAX_TOKENS: Final = 16_384
MAX_ROUTES: Final = 64
KEPT: Final = 8
"""Fronts of one route that are kept: those of as many applications, or of as many moments."""
SAME_TEXT: Final = 0.5
"""Share of a text, at its two ends, that has to be the same for it to be the same text with a change in it."""
SAME_OTHERWISE: Final = frozenset[Cause](("tool-order", "order", "whitespace"))
"""What changes of a front that holds all that the other one holds."""
PARTS: Final = frozenset[Cause](("billing-header", "clock", "date", "ids", "memory"))
"""What changes in a front, and may stand in another one too: fronts that part there may have nothing in common."""


class Parting(NamedTuple):
    """Where the front of a prompt parts from the nearest of those sent lately.

    Attributes:
        kind: what changed, in the words of :mod:`prefixpilot.volatile.divergence`.
        volatile: it is the same front but for that, not another one.
        pointer, offset: of the first character, or element, that differs, in the body that was sent.
        chars: characters of the prompt in front of it.
        tokens: tokens in front of it; ``None`` where the engine's are not known.
    """

    kind: Cause
    volatile: bool
    pointer: Pointer
    offset: int
    chars: int
    tokens: int | None = None

    def shown(self) -> dict[str, Any]:
        """As JSON. Holds no text of the prompt."""
        return {**self._asdict(), "pointer": list(self.pointer)}


@dataclass(frozen=True, slots=True)
class Front:
    """What of a prompt stands before its documents.

    Attributes:
        prompt: cut there, without what is no text.
        chars: of its texts.
        whole: of all texts of the prompt.
        answered: it goes on with a conversation.
        tokens: the first tokens of the prompt; empty where they are not known.
    """

    prompt: Prompt
    chars: int
    whole: int
    answered: bool
    tokens: array[int]


def front_of(prompt: Prompt, plans: Sequence[Plan], tokens: EnginePrompt | None = None) -> Front:
    """The front of a prompt as it was sent: up to its first context block, or its system text if that comes later than
    an answer, or there are none. O(bytes)."""
    needles = _needles(plans)
    messages = _before_blocks(prompt.messages, needles) if needles else None
    if messages is None:
        messages = [message for message in prompt.messages if message.role == "system"]
    kept = list(_bounded(messages))
    body = {name: prompt.body[name] for name in ("model", "tools") if name in prompt.body}
    return Front(
        replace(prompt, body=body, messages=tuple(kept), newest_user=-1, in_tool_loop=False),
        sum(len(segment.text) for message in kept for segment in message.segments),
        sum(len(segment.text) for segment in prompt.segments()),
        any(message.role == "assistant" for message in prompt.messages),
        array("I") if tokens is None else tokens.token_ids[:MAX_TOKENS],
    )


def _needles(plans: Sequence[Plan]) -> list[str]:
    """The first block of the first context, as we render it, and as an application does."""
    for plan in plans:
        if plan.head and not plan.turn and plan.head[0].block.text:
            return [render_block(plan.head[0], plan.templates).strip(), plan.head[0].block.text.strip()]
    return []


def _before_blocks(messages: Sequence[Message], needles: Sequence[str]) -> list[Message] | None:
    """Messages up to the first block; ``None`` if it is not found before the first answer."""
    before: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            return None
        for number, segment in enumerate(message.segments):
            at = next((at for needle in needles if needle and (at := segment.text.find(needle)) >= 0), -1)
            if at >= 0:
                cut = replace(segment, text=segment.text[:at])
                return [*before, replace(message, segments=(*message.segments[:number], cut))]
        before.append(message)
    return None


def _bounded(messages: Iterable[Message]) -> Iterable[Message]:
    """No more text than is kept, and nothing that is no text."""
    room = MAX_CHARS
    for message in messages:
        segments = []
        for segment in message.segments:
            text = segment.text if len(segment.text) <= room else segment.text[:room]
            segments.append(segment if text is segment.text else replace(segment, text=text))
            room -= len(text)
        yield replace(message, value=None, segments=tuple(segments), calls=())
        if room <= 0:
            return


class Fronts:
    """Fronts by route, the latest of each; the least recently used route goes first. Not thread-safe."""

    def __init__(self, max_routes: int = MAX_ROUTES) -> None:
        self._max = max_routes
        self._routes: OrderedDict[Hashable, deque[Front]] = OrderedDict()

    def __len__(self) -> int:
        """How many fronts are kept."""
        return sum(map(len, self._routes.values()))

    def parting(self, route: Hashable, front: Front) -> Parting | None:
        """As :meth:`nearest`, without the other front."""
        nearest = self.nearest(route, front)
        return None if nearest is None else nearest[0]

    def nearest(self, route: Hashable, front: Front) -> tuple[Parting, Front] | None:
        """Where a front parts from the nearest of those of its route, and that one; ``None``: one of them is the same,
        or there is none. Changes nothing. O(characters)."""
        nearest: tuple[Place, Front] | None = None
        for old in self._routes.get(route, ()):
            place = first_place(old.prompt, front.prompt)
            if place is None:
                return None
            if nearest is None or place.found.shared > nearest[0].found.shared:
                nearest = place, old
        if nearest is None:
            return None
        place, old = nearest
        found = place.named()
        parting = Parting(found.cause, False, found.pointer, found.offset, found.shared)
        if found.cause in SAME_OTHERWISE or (found.cause in PARTS and place.is_inside(found.cause)):
            parting = parting._replace(volatile=True)
        elif found.cause == "text" or found.cause in PARTS:
            same = _same_but_for_a_part(old, front, parting)
            parting = parting._replace(kind=found.cause if same else "text", volatile=same)
        return parting._replace(tokens=_common_tokens(old.tokens, front.tokens)), old

    def add(self, route: Hashable, front: Front) -> None:
        """The engine has had it. O(fronts of the route)."""
        kept = self._routes.setdefault(route, deque(maxlen=KEPT))
        self._routes.move_to_end(route)
        same = next((old for old in kept if first_place(old.prompt, front.prompt) is None), None)
        if same is not None:
            kept.remove(same)
        kept.append(front)
        if len(self._routes) > self._max:
            self._routes.popitem(last=False)


def _same_but_for_a_part(old: Front, new: Front, parting: Parting) -> bool:
    """Whether the two texts that differ are one text with a change in it, by what they share at their ends."""
    texts = [
        next((s.text for s in front.prompt.segments() if s.pointer == parting.pointer), "") for front in (old, new)
    ]
    shorter = min(map(len, texts)) - parting.offset
    tails = [text[len(text) - shorter :][::-1] for text in texts]
    return parting.offset + common_prefix(*tails) >= SAME_TEXT * max(map(len, texts))


def _common_tokens(old: array[int], new: array[int]) -> int | None:
    """Tokens that two prompts have in common at their heads; ``None`` where it is not known."""
    shorter = min(len(old), len(new))
    same = next((i for i in range(0, shorter, 64) if old[i : i + 64] != new[i : i + 64]), None)
    if same is None:
        return None
    return next((i for i in range(same, shorter) if old[i] != new[i]), None)
