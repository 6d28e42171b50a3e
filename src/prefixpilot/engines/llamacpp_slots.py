"""Which slot of llama.cpp a request goes to: slot choice is cache routing there.

A server with N slots holds N prompts, and takes by itself the idle slot with most in common with the new one. That
writes over the prompts of conversations: a request that shares their first document takes their slot. The router keeps
a picture of slots and store (:mod:`prefixpilot.prefix_cache.slots`) by what was sent, and names the idle slot that
saves most, less what others lose. The picture is a guess until an answer reports its cached tokens; where answers keep
reporting less than was expected, no slot is named for a while. No I/O here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from prefixpilot.prefix_cache.slots import SlotCache

SERVER: Final = "llama.cpp"
"""What it says in its header ``Server``."""
ID_SLOT: Final = "id_slot"
GONE_ON: Final = 0.7
BEGUN: Final = 0.5
ALONE: Final = 0.1
"""How likely a prompt is to be gone on with: it has an answer already; its conversation is named; neither."""
SLACK_TOKENS: Final = 32
"""What a template puts between messages, and bytes that make other than the average of tokens."""
JUDGED: Final = 8
TRUSTED: Final = 0.7
PAUSE: Final = 200
"""After JUDGED predictions that came to less than TRUSTED of what they said in sum, PAUSE requests get no slot."""
MAX_SLOTS: Final = 256

SlotState = Literal["on", "paused"]


class ServerFacts(NamedTuple):
    """What ``GET /props`` says.

    Attributes:
        slots: how many there are.
        context_tokens: of one slot; ``None`` if it does not say.
        shows_slots: ``GET /slots`` is answered.
        model: its name; ``None`` if it does not say.
    """

    slots: int
    context_tokens: int | None
    shows_slots: bool
    model: str | None


class SlotReport(NamedTuple):
    """What ``GET /slots`` says of a slot.

    Attributes:
        prompt_tokens: of the prompt it took last, answer included; ``None``: it has taken none since the start.
    """

    slot: int
    busy: bool
    prompt_tokens: int | None


def read_props(document: Any) -> ServerFacts | None:
    """The answer to ``GET /props``; ``None`` if it is not that of llama.cpp."""
    if not isinstance(document, dict):
        return None
    slots = document.get("total_slots")
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= MAX_SLOTS:
        return None
    settings = document.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    model = document.get("model_alias") or document.get("model_path")
    return ServerFacts(
        slots,
        context if isinstance(context, int) and context > 0 else None,
        document.get("endpoint_slots") is True,
        model if isinstance(model, str) else None,
    )


def read_slots(document: Any) -> tuple[SlotReport, ...]:
    """The answer to ``GET /slots``; empty if it is none."""
    if not isinstance(document, list):
        return ()
    return tuple(
        SlotReport(each["id"], each.get("is_processing") is True, _count(each.get("n_prompt_tokens")))
        for each in document
        if isinstance(each, dict) and isinstance(each.get("id"), int)
    )


@dataclass(frozen=True, slots=True)
class Seat:
    """A request in a slot.

    Attributes:
        slot: its id.
        named: the router asks for it; else it is where llama.cpp probably puts the request.
        prompt_bytes, cached_bytes: of the prompt, and how many of them are expected to be cached.
    """

    slot: int
    named: bool
    prompt_bytes: int
    cached_bytes: int


@dataclass(slots=True)
class Agreement:
    """What was expected of the last answers, and what they said, in tokens."""

    answers: int = 0
    expected: float = 0.0
    reported: float = 0.0

    def add(self, expected: float, reported: int) -> None:
        """One more answer; older ones count less with each."""
        self.answers += 1
        self.expected = 0.9 * self.expected + expected
        self.reported = 0.9 * self.reported + min(reported, expected)

    @property
    def broken(self) -> bool:
        return self.answers >= JUDGED and self.reported < TRUSTED * self.expected


class SlotRouter:
    """Names slots for the requests to one llama.cpp server. Not thread-safe; memory as :class:`SlotCache`.

    Attributes:
        named: how many requests got a slot.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._agreement = Agreement()
        self._pause = 0
        self.named = 0

    @property
    def state(self) -> SlotState:
        return "paused" if self._pause else "on"

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    def seat(self, prompt: bytes, worth: float) -> Seat | None:
        """Take the best idle slot for a prompt; ``None``: all are busy or slots are paused, llama.cpp is to choose."""
        if self._pause:
            self._pause -= 1
            return None
        best = self._cache.best(prompt, worth)
        if best is None:
            return None
        self.named += 1
        return self._placed(prompt, worth, best.slot, named=True)

    def follow(self, prompt: bytes, worth: float, slot: int | None = None) -> Seat | None:
        """Note a request that the client, or llama.cpp itself, puts into a slot; ``None`` if that cannot be known."""
        slot = self._cache.own_choice(prompt) if slot is None else slot
        if slot is None or slot not in self._cache.idle:
            return None
        return self._placed(prompt, worth, slot, named=False)

    def leave(self, seat: Seat, prompt_tokens: int | None, cached_tokens: int | None, *, failed: bool = False) -> bool:
        """The request is over, and the engine reported these counts. Returns whether the picture was wrong."""
        self._cache.release(seat.slot, failed=failed)
        if failed or not prompt_tokens or cached_tokens is None or not seat.prompt_bytes:
            return False
        expected = seat.cached_bytes * prompt_tokens / seat.prompt_bytes
        if seat.named and expected > SLACK_TOKENS:
            self._agreement.add(expected - SLACK_TOKENS, cached_tokens)
        wrong = cached_tokens < expected - SLACK_TOKENS - 0.1 * prompt_tokens
        if wrong:
            self._cache.forget_store()
        if self._agreement.broken:
            self._agreement, self._pause = Agreement(), PAUSE
            self._cache.clear_idle()
        return wrong

    def confirm(self, reports: tuple[SlotReport, ...]) -> None:
        """Compare with what the server says: a slot that has taken no prompt holds none."""
        for report in reports:
            if report.prompt_tokens is None and report.slot in self._cache.idle:
                self._cache.empty(report.slot)

    def _placed(self, prompt: bytes, worth: float, slot: int, *, named: bool) -> Seat:
        return Seat(slot, named, len(prompt), self._cache.place(prompt, slot, worth))


def worth_of(*, answered: bool, named: bool) -> float:
    """How likely a prompt is to be gone on with: it has answers in it; its conversation is named; or neither."""
    return GONE_ON if answered else BEGUN if named else ALONE


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
