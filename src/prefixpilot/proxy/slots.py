"""Slots of llama.cpp: which one a request goes to (``id_slot``), if the engine is one and the client names none.

An engine is known by its header ``Server``; then it is asked once for ``/props``. Every request to one of the four APIs
is followed from there on, so that the picture of its slots is right; a slot is named for those in mode on, and the
index is told of what a request has used up. Whatever goes wrong here, the request goes as it would without.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from prefixpilot.apis.base import Prompt
from prefixpilot.engines.llamacpp_slots import (
    ID_SLOT,
    MAX_SLOTS,
    SERVER,
    Seat,
    ServerFacts,
    SlotRouter,
    read_props,
    read_slots,
    worth_of,
)
from prefixpilot.errors import EngineError
from prefixpilot.jsontext import JsonText, SetMember
from prefixpilot.proxy.account import Account
from prefixpilot.proxy.call import Call, is_encoded
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Attempt, Failed
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.upstream import Upstream, chunks, kind_of

EVERY_S: Final = 30.0
MAX_BYTES: Final = 4 << 20
MAX_BODY_BYTES: Final = 1 << 20
"""A longer body is not followed: it would be read on the event loop."""
NAMED_IN: Final = frozenset(("chat", "completions", "responses"))
"""APIs in which llama.cpp reads ``id_slot``; its Messages API drops it."""

log = logging.getLogger(__name__)


class Evicting(Protocol):
    """What of a :class:`~prefixpilot.ContextPilot` is told of them."""

    def evict(self, request_ids: Iterable[str]) -> object:
        """The prefixes of these requests are gone, but for what later ones have."""
        ...


@dataclass(frozen=True, slots=True)
class Sending:
    """A request on its way: its headers and its body, a slot named in it or not."""

    headers: h.RawHeaders
    body: bytes
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class SlotStats:
    """What ``/stats`` shows of slots.

    Attributes:
        state: ``off`` (by setting), ``unknown`` (no llama.cpp was seen), ``watching`` (what it does with idle slots),
            ``on``, ``one`` (there is no choice), ``left`` (it clears idle slots, so that the choice is left to it), or
            ``paused`` (answers said less than was expected).
        slots: how many the engine has; ``None`` if unknown.
        named: requests that were sent to a slot.
    """

    state: str
    slots: int | None
    named: int


class Slots:
    """Of one engine, on one event loop.

    Args:
        index: is told whose prompts are used up.
        attempt: the fail-open point; the step is ``slots``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: ProxySettings,
        index: Evicting,
        upstream: Upstream,
        attempt: Attempt,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._on = settings.slots == "auto"
        self._index = index
        self._bound_s = settings.ready_timeout
        self._upstream = upstream
        self._attempt = attempt
        self._clock = clock
        self._router: SlotRouter | None = None
        self._facts: ServerFacts | None = None
        self._next = float("-inf")
        self._task: asyncio.Task[None] | None = None

    @property
    def stats(self) -> SlotStats:
        if self._router is None or self._facts is None:
            return SlotStats("unknown" if self._on else "off", None, 0)
        return SlotStats(self._router.state, self._facts.slots, self._router.named)

    async def look(self) -> None:
        """Learn of the engine's slots, if it is llama.cpp and they are not known. Bounded; raises nothing."""
        if not self._wanted():
            return
        self._next = self._clock() + EVERY_S
        try:
            async with asyncio.timeout(self._bound_s):
                self._learn(read_props(json.loads(await self._get(b"/props"))))
        except (EngineError, TimeoutError, ValueError, RecursionError) as error:
            log.debug("llama.cpp does not tell its slots: %s", kind_of(error))

    def clear(self) -> None:
        """Forget what the slots hold."""
        if self._facts is not None:
            self._router = SlotRouter(self._facts.slots)

    def cancel(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def sending(
        self, call: Call, forward: Forward, headers: h.RawHeaders, account: Account
    ) -> AbstractContextManager[Sending]:
        """What to send; within it the request is under way. ``account`` has the engine's counts when it is over."""
        as_it_is = Sending(headers, forward.body)
        if self._router is not None:
            return self._sending(self._router, call, forward, as_it_is, account)
        if self._wanted():
            self._task = asyncio.create_task(self.look())
        return nullcontext(as_it_is)

    @contextmanager
    def _sending(
        self, router: SlotRouter, call: Call, forward: Forward, as_it_is: Sending, account: Account
    ) -> Iterator[Sending]:
        seated = self._attempt("slots", lambda: self._seated(router, call, forward, as_it_is))
        if seated is None or isinstance(seated, Failed):
            yield as_it_is
            return
        seat, sending = seated
        try:
            yield sending
        finally:
            self._attempt("slots", lambda: self._left(router, seat, account))

    def _seated(
        self, router: SlotRouter, call: Call, forward: Forward, sending: Sending
    ) -> tuple[Seat, Sending] | None:
        if len(forward.body) > MAX_BODY_BYTES or (not forward.touched and is_encoded(call)):
            return None
        source = JsonText.read(forward.body)
        prompt = call.api.read(source.value)
        if prompt is None:
            return None
        text = prompt_text(prompt)
        worth = worth_of(
            answered=any(message.role == "assistant" for message in prompt.messages),
            named=h.get(call.headers, h.CONVERSATION) is not None,
        )
        names = _names(forward)
        if not _may_be_named(source.value, forward):
            return _both(router.follow(text, worth, _slot_of(source.value), names), sending)
        seat = router.seat(text, worth, names)
        if seat is None:
            return _both(router.follow(text, worth, names=names), sending)
        body = source.edited([SetMember((), ID_SLOT, seat.slot)])
        return seat, Sending(h.without(sending.headers, (b"content-length",)), body, seat.slot)

    def _left(self, router: SlotRouter, seat: Seat, account: Account) -> None:
        usage = account.usage
        counts = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        failed = account.outcome in (None, "engine_error")
        if seat.used_up and not failed:
            self._index.evict(seat.used_up)
        if router.leave(seat, *counts, failed=failed):
            self._confirm(router)

    def _confirm(self, router: SlotRouter) -> None:
        """Ask the engine what its slots hold: while it is watched, and once in a while where the picture was wrong."""
        waits = self._clock() < self._next and router.state != "watching"
        asking = self._task is not None and not self._task.done()
        if self._facts is None or not self._facts.shows_slots or waits or asking:
            return
        self._next = self._clock() + EVERY_S
        self._task = asyncio.create_task(self._compare(router))

    async def _compare(self, router: SlotRouter) -> None:
        try:
            async with asyncio.timeout(self._bound_s):
                reports = read_slots(json.loads(await self._get(b"/slots")))
        except (EngineError, TimeoutError, ValueError, RecursionError) as error:
            log.debug("llama.cpp does not show its slots: %s", kind_of(error))
            return
        router.confirm(reports)

    def _wanted(self) -> bool:
        named = self._upstream.server.partition("/")[0].strip().lower() == SERVER
        return self._on and self._router is None and named and self._clock() >= self._next

    def _learn(self, facts: ServerFacts | None) -> None:
        if facts is not None and self._router is None:
            self._facts = facts
            self._router = SlotRouter(facts.slots)
            self._next = float("-inf")
            log.info("llama.cpp has %d slots", facts.slots)

    async def _get(self, target: bytes) -> bytes:
        body = b""
        async with self._upstream.request("GET", target, [], None) as response:
            if response.status != 200:
                return b"null"
            async for piece in chunks(response):
                body += piece
                if len(body) > MAX_BYTES:
                    return b"null"
        return body


def prompt_text(prompt: Prompt) -> bytes:
    """A prompt as llama.cpp would compare it: tools first, then roles and texts in reading order. O(bytes)."""
    tools = prompt.body.get("tools")
    pieces = [] if not tools else [json.dumps(tools)]
    for message in prompt.messages:
        pieces.append(f"\0{message.role}\n")
        pieces.extend(segment.text for segment in message.segments)
        pieces.extend(f"{call.name}{call.arguments}" for call in message.calls)
    return "".join(pieces).encode("utf-8", "surrogatepass")


def _may_be_named(body: Mapping[str, Any], forward: Forward) -> bool:
    """Only in mode on, and where the client leaves it to us; several answers take several slots."""
    held_out = forward.trial is not None and forward.trial.arm == "held_out"
    single = body.get("n") in (None, 1) and body.get("cache_prompt") is not False
    return forward.mode == "on" and not held_out and forward.api in NAMED_IN and ID_SLOT not in body and single


def _names(forward: Forward) -> tuple[str, ...]:
    """Of a prompt: the requests by which the index knows what it sends."""
    plans = forward.ticket.plans if forward.mode == "on" else ()
    return tuple(plan.request_id for plan in plans if not plan.turn)


def _slot_of(body: Mapping[str, Any]) -> int | None:
    """The slot that a client names."""
    slot = body.get(ID_SLOT)
    return slot if isinstance(slot, int) and not isinstance(slot, bool) and 0 <= slot < MAX_SLOTS else None


def _both(seat: Seat | None, sending: Sending) -> tuple[Seat, Sending] | None:
    return None if seat is None else (seat, sending)
