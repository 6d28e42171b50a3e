"""Which slot of llama.cpp a request goes to: slot choice is cache routing there.

A server with N slots holds N prompts, and takes by itself the idle slot with most in common with the new one. That
writes over the prompts of conversations: a request that shares their first document takes their slot. The router keeps
a picture of slots and store (:mod:`prefixpilot.prefix_cache.slots`) by what was sent, and names the idle slot that
saves most, less what others lose. Servers differ in what they do with the prompts of idle slots: a picture of each kind
is kept, and the one that agrees with the answers is believed. Where none does no slot is named for a while, and none at
all where idle slots are cleared (unified KV, ``llama-server``'s default): its own choice is right there. Where there is
one slot nothing is to be chosen. What goes on with a stored prompt uses it up: the router tells whose prompts those
were, so that no order is made for what is gone. No I/O here.
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
WATCHED: Final = 8
LITTLE: Final = 0.5
"""Once while the server is watched a request goes to an empty slot, so that something can be seen: one of which its own
choice has less than LITTLE cached, else the one after WATCHED others."""
MAX_SLOTS: Final = 256

SlotState = Literal["watching", "on", "one", "left", "paused"]
"""No slot is named yet; slots are named; there is only one; the server clears idle slots, so that its own choice is
right; not for now."""


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
        prompt_tokens: of the prompt it holds, answer included; 0: it was cleared; ``None``: it has taken none yet.
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
        prompt_bytes: of the prompt.
        cached_bytes: how many of them each picture of the server expects to be cached.
        by: the picture that was believed.
        used_up: names of the earlier prompts of which nothing is left but what this one has in common with them; none
            where it is not known what becomes of idle slots.
    """

    slot: int
    named: bool
    prompt_bytes: int
    cached_bytes: tuple[int, ...]
    by: int
    used_up: tuple[str, ...] = ()

    def expected(self, prompt_tokens: int) -> tuple[float, ...]:
        """Cached tokens of a prompt of that length, by picture."""
        return tuple(each * prompt_tokens / self.prompt_bytes for each in self.cached_bytes)


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
    """Names slots for the requests to one llama.cpp server. Not thread-safe; memory as three of :class:`SlotCache`.

    Args:
        slots: how many the server has.
        state: ``watching`` until ``confirm`` has seen what becomes of idle slots; ``None``: that, or ``one``.

    Attributes:
        named: how many requests got a slot.
    """

    def __init__(self, slots: int, state: SlotState | None = None) -> None:
        self._pictures = (SlotCache(slots), SlotCache(slots, copies_idle=False), SlotCache(slots, 0))
        self._errors = [0.0] * len(self._pictures)
        self._agreement = Agreement()
        self._state: SlotState = state or ("one" if slots == 1 else "watching")
        self._pause = 0
        self._watched = 0
        self.named = 0

    @property
    def state(self) -> SlotState:
        return "paused" if self._pause else self._state

    @property
    def believed(self) -> int:
        """The picture that was least wrong lately; the first of equal ones."""
        return min(range(len(self._errors)), key=lambda picture: self._errors[picture])

    def seat(self, prompt: bytes, worth: float, names: tuple[str, ...] = ()) -> Seat | None:
        """Take the best idle slot for a prompt; ``None``: llama.cpp is to choose, see ``follow``.

        Args:
            names: by which the prompt is told of in a later ``Seat.used_up``.
        """
        if self._pause:
            self._pause -= 1
            return None
        if self._state == "on":
            best = self._pictures[self.believed].best(prompt, worth)
            slot = None if best is None else best.slot
        else:
            slot = self._untried(prompt)
        if slot is None:
            return None
        self.named += 1
        return self._placed(prompt, worth, slot, names, named=True)

    def follow(self, prompt: bytes, worth: float, slot: int | None = None, names: tuple[str, ...] = ()) -> Seat | None:
        """Note a request that the client, or llama.cpp itself, puts into a slot; ``None`` if that cannot be known."""
        picture = self._pictures[self.believed]
        slot = picture.own_choice(prompt) if slot is None else slot
        if slot is None or slot not in picture.idle:
            return None
        return self._placed(prompt, worth, slot, names, named=False)

    def leave(self, seat: Seat, prompt_tokens: int | None, cached_tokens: int | None, *, failed: bool = False) -> bool:
        """The request is over, and the engine reported these counts. Returns whether ``confirm`` is wanted."""
        for picture in self._pictures:
            picture.release(seat.slot, failed=failed)
        if failed or not prompt_tokens or cached_tokens is None or not seat.prompt_bytes:
            return self._state == "watching"
        expected = seat.expected(prompt_tokens)
        off = (max(0.0, abs(each - cached_tokens) - SLACK_TOKENS) for each in expected)
        self._errors = [0.9 * before + each for before, each in zip(self._errors, off, strict=True)]
        mine = expected[seat.by]
        if seat.named and mine > SLACK_TOKENS:
            self._agreement.add(mine - SLACK_TOKENS, cached_tokens)
        wrong = cached_tokens < mine - SLACK_TOKENS - 0.1 * prompt_tokens
        if wrong:
            self._pictures[seat.by].forget_store()
        if self._agreement.broken:
            self._agreement, self._pause = Agreement(), PAUSE
            for cache in self._pictures:
                cache.clear_idle()
        return wrong or self._state == "watching"

    def confirm(self, reports: tuple[SlotReport, ...]) -> None:
        """What the server says of its slots: one that has taken no prompt holds none, and what became of idle ones."""
        idle = [report for report in reports if not report.busy]
        for report in idle:
            for picture in self._pictures:
                if not report.prompt_tokens and report.slot in picture.idle:
                    picture.empty(report.slot)
        if any(report.prompt_tokens == 0 for report in idle):
            self._state = "left"
        elif sum(bool(report.prompt_tokens) for report in idle) >= 2 and self._state == "watching":
            self._state = "on"

    def _untried(self, prompt: bytes) -> int | None:
        """An empty slot, if the server is watched and has shown only one so far."""
        picture = self._pictures[0]
        held = picture.contents.slots
        used = [slot for slot in range(len(held)) if held[slot].text]
        if self._state != "watching" or len(used) != 1 or self._watched > WATCHED:
            return None
        self._watched += 1
        own = picture.own_choice(prompt)
        little = own in used and picture.preview(prompt, used[0]).cached < LITTLE * len(prompt)
        if not little and self._watched <= WATCHED:
            return None
        self._watched = WATCHED + 1
        return next((slot for slot in picture.idle if slot not in used), None)

    def _placed(self, prompt: bytes, worth: float, slot: int, names: tuple[str, ...], *, named: bool) -> Seat:
        by = self.believed
        cached = tuple(picture.place(prompt, slot, worth, names) for picture in self._pictures)
        used_up = self._pictures[by].used_up if self.state in ("on", "one") else ()
        return Seat(slot, named, len(prompt), cached, by, used_up)


def worth_of(*, answered: bool, named: bool) -> float:
    """How likely a prompt is to be gone on with: it has answers in it; its conversation is named; or neither."""
    return GONE_ON if answered else BEGUN if named else ALONE


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
