"""OpenAI's ``prompt_cache_key``: requests with an equal stable prefix go to the machine that has it cached.

Opt-in, only where the upstream is OpenAI, and only if the client sends none. Nothing else is set: with GPT-5.6 came
``prompt_cache_options``, which may not stand beside the older ``prompt_cache_retention``, so both are the client's.

One key should carry no more than about 15 requests a minute, or the provider spreads them over further machines
(https://developers.openai.com/api/docs/guides/prompt-caching). :class:`KeyShards` splits a key before that: each
conversation stays with one shard, since its own history is worth more than the prefix that all share.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prefixpilot.apis.base import Pointer, Prompt
from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.jsontext import SetMember

KEY_RATE: Final = 15
"""Requests a minute on one key where the table of limits does not say."""

MINUTE: Final = 60.0

_APIS = frozenset({"chat", "responses"})
_FIELD = "prompt_cache_key"


def stable_key(prompt: Prompt, *, texts: Mapping[Pointer, str] | None = None, scope: str = "") -> str | None:
    """A key for all requests that begin alike: same model, same tools, same system text. O(tools + system text).

    Args:
        texts: what will stand in the place of strings, by pointer. Text that changes with each request has to be out
            of the front by then: a key of its own for each request is worse than none.
        scope: what else must be equal, for example a tenant.

    Returns:
        ``pp-`` and 24 hex digits, or ``None`` if there are neither tools nor system text to share.
    """
    system = [
        (texts or {}).get(segment.pointer, segment.text)
        for message in prompt.messages[: _first_turn(prompt)]
        for segment in message.segments
    ]
    tools = prompt.body.get("tools")
    if not tools and not any(system):
        return None
    parts = [scope, _canonical(prompt.body.get("model")), _canonical(tools), *system]
    return f"pp-{_digest(parts, 12).hex()}"


def conversation_seed(prompt: Prompt) -> bytes:
    """What all turns of one conversation have in common: a hash of its first message that is no system text."""
    first = prompt.messages[_first_turn(prompt) :][:1]
    return _digest([_canonical(message.value) for message in first], 16)


def cache_key_edit(prompt: Prompt, key: str) -> SetMember | None:
    """The member to add, or ``None``: the client sends a key, even an empty one, or the API has no such field."""
    if prompt.api not in _APIS or _FIELD in prompt.body:
        return None
    return SetMember((), _FIELD, key)


@dataclass(slots=True)
class _Rate:
    """Requests on one key, by minute, newest last."""

    minutes: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, minute: int, oldest: int) -> None:
        while self.minutes and self.minutes[0][0] < oldest:
            self.minutes.popleft()
        if self.minutes and self.minutes[-1][0] == minute:
            self.minutes[-1] = (minute, self.minutes[-1][1] + 1)
        else:
            self.minutes.append((minute, 1))

    def peak(self) -> int:
        return max(count for _, count in self.minutes)


class KeyShards:
    """How many keys stand for one, by the rate of its requests, and which of them a conversation has.

    The number follows the busiest of the last ``window`` minutes. When it grows from n to n + 1, one conversation in
    n + 1 moves (rendezvous hashing), none of the others. State: a counter a minute for each key, least recently used
    keys dropped first. O(shards) a call, and no more than ``max_shards`` of them.

    Args:
        per_minute: requests that one key may carry.
        window: minutes for which a peak counts.
        max_keys: keys counted.
        max_shards: shards of one key.
    """

    def __init__(
        self, per_minute: int = KEY_RATE, *, window: int = 10, max_keys: int = 10_000, max_shards: int = 64
    ) -> None:
        for name, value in (
            ("per_minute", per_minute),
            ("window", window),
            ("max_keys", max_keys),
            ("max_shards", max_shards),
        ):
            if type(value) is not int or value < 1:
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        self._per_minute = per_minute
        self._window = window
        self._max_keys = max_keys
        self._max_shards = max_shards
        self._rates: OrderedDict[str, _Rate] = OrderedDict()
        self._minute = 0

    def __len__(self) -> int:
        return len(self._rates)

    def clear(self) -> None:
        """Forget all rates."""
        self._rates.clear()

    def preview(self, key: str, seed: bytes) -> str:
        """The key that :meth:`key` would give now, if the request went into no new shard. Counts nothing."""
        rate = self._rates.get(key)
        return self._sharded(key, seed, 1 if rate is None else rate.peak())

    def key(self, key: str, seed: bytes, now: float) -> str:
        """Counts a request and gives its key: ``key`` itself on the first shard, else with the shard's number.

        Args:
            key: of the stable prefix.
            seed: of the conversation, see :func:`conversation_seed`.
            now: seconds of a clock that does not run back; if it does, the last minute seen counts.
        """
        self._minute = max(self._minute, int(now // MINUTE))
        rate = self._rates.setdefault(key, _Rate())
        self._rates.move_to_end(key)
        if len(self._rates) > self._max_keys:
            self._rates.popitem(last=False)
        rate.add(self._minute, self._minute - self._window + 1)
        return self._sharded(key, seed, rate.peak())

    def _sharded(self, key: str, seed: bytes, peak: int) -> str:
        shard = _rendezvous(seed, min(-(-peak // self._per_minute), self._max_shards))
        return key if shard == 0 else f"{key}-{shard}"

    def check_invariants(self) -> None:
        """Raise :class:`InvariantError` unless all bounds hold."""
        if len(self._rates) > self._max_keys:
            raise InvariantError(f"{len(self._rates)} keys, bound {self._max_keys}")
        for key, rate in self._rates.items():
            minutes = [minute for minute, _ in rate.minutes]
            if not minutes or len(minutes) > self._window or minutes != sorted(set(minutes)):
                raise InvariantError(f"{key} counts minutes {minutes}")
            if any(count < 1 for _, count in rate.minutes) or minutes[-1] > self._minute:
                raise InvariantError(f"{key} counts {list(rate.minutes)}")


def _rendezvous(seed: bytes, shards: int) -> int:
    return max(range(shards), key=lambda shard: _digest([str(shard), seed.hex()], 8))


def _first_turn(prompt: Prompt) -> int:
    """Index of the first message that is no system text."""
    turns = (i for i, message in enumerate(prompt.messages) if message.role != "system")
    return next(turns, len(prompt.messages))


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(parts: Iterable[str], size: int) -> bytes:
    """Hash of texts, each with its length, so that no two lists are one."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
