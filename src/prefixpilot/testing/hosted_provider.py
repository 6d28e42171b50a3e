"""The prompt cache of a hosted provider, for the simulated engine: entries that live for a time, and its counts.

Written from the providers' documents, and apart from the models of :mod:`prefixpilot.providers`, which it is there to
test: it looks at the tokens of whole prompts, they at blocks of bodies. Its clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from prefixpilot.testing.chat_wire import Chat, tokenize
from prefixpilot.testing.wires import flat

Dialect = Literal["openai", "anthropic", "deepseek"]
_LIFETIMES: Final = {"5m": 300.0, "1h": 3600.0}


class Counted(NamedTuple):
    """What a provider makes of one request. Tokens.

    Attributes:
        prompt, cached: of the prompt; the cached ones are among them.
        usage: the members of its ``usage`` that are about the prompt, as it names them.
    """

    prompt: int
    cached: int
    usage: Mapping[str, Any]


@dataclass(slots=True)
class _Held:
    """One prompt, or one prefix of a prompt."""

    tokens: list[str]
    used: float
    lifetime: float


@dataclass(slots=True)
class HostedProvider:
    """One account of a provider. Not thread-safe: the engine's event loop calls it.

    ``openai``: every prefix, whole increments. ``anthropic``: entries at marks, found by looking back ``lookback``
    blocks from each mark. ``deepseek``: whole prompts, and what two of them had in common.

    Attributes:
        clock: seconds.
        minimum, increment: of a cached prefix, in tokens.
        lifetime_s: of an entry since its last use, where no mark says otherwise.
        away: another machine answers, with a cache of its own that is always empty.
    """

    dialect: Dialect
    clock: Callable[[], float]
    minimum: int = 1024
    increment: int = 1
    lifetime_s: float = 300.0
    lookback: int = 20
    away: bool = False
    _held: dict[str, list[_Held]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything, as a provider may before a lifetime is over."""
        self._held.clear()

    def begin(self, body: Mapping[str, Any], chat: Chat) -> Counted:
        """A request comes in, and writes what it did not read."""
        now = self.clock()
        alive = [held for held in self._held.get(chat.model, ()) if now - held.used < held.lifetime]
        self._held[chat.model] = alive
        if self.dialect == "anthropic":
            return self._marked(body, alive, now)
        tokens = tokenize(chat.prompt)
        cached = 0 if self.away else self._longest(alive, tokens, now)
        if not self.away:
            self._write(alive, tokens, now)
        miss = {"prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": len(tokens) - cached}
        details = {
            "prompt_tokens_details": {"cached_tokens": cached},
            "input_tokens_details": {"cached_tokens": cached},
        }
        counts = {"prompt_tokens": len(tokens), "input_tokens": len(tokens)}
        return Counted(len(tokens), cached, {**counts, **(miss if self.dialect == "deepseek" else details)})

    def _longest(self, alive: list[_Held], tokens: list[str], now: float) -> int:
        found = 0
        for held in alive:
            common = _common(held.tokens, tokens)
            whole = self.dialect == "openai" or common == len(held.tokens)
            usable = self._cacheable(min(common, len(tokens) - 1)) if whole else 0
            if usable:
                held.used = now
            found = max(found, usable)
        return found

    def _write(self, alive: list[_Held], tokens: list[str], now: float) -> None:
        if self.dialect == "deepseek":
            shared = max((_common(held.tokens, tokens) for held in alive), default=0)
            if self._cacheable(shared):
                alive.append(_Held(tokens[:shared], now, self.lifetime_s))
        if self._cacheable(len(tokens)):
            alive.append(_Held(tokens, now, self.lifetime_s))

    def _marked(self, body: Mapping[str, Any], alive: list[_Held], now: float) -> Counted:
        parts = list(_parts(body))
        prefixes = [[token for _, words, _ in parts[: end + 1] for token in words] for end in range(len(parts))]
        marks = [number for number, (_, _, lifetime) in enumerate(parts) if lifetime]
        cached = 0
        for mark in () if self.away else marks:
            for number in range(mark, max(mark - self.lookback, -1), -1):
                hit = next((held for held in alive if held.tokens == prefixes[number]), None)
                if hit is not None and self._cacheable(len(hit.tokens)):
                    hit.used, cached = now, max(cached, len(hit.tokens))
                    break
        last = len(prefixes[marks[-1]]) if marks else 0
        new = [mark for mark in marks if self._cacheable(len(prefixes[mark])) and len(prefixes[mark]) > cached]
        alive.extend(_Held(prefixes[mark], now, parts[mark][2]) for mark in new if not self.away)
        whole = len(prefixes[-1]) if prefixes else 0
        written = max(last - cached, 0) if self._cacheable(last) else 0
        usage = {
            "input_tokens": whole - cached - written,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        }
        return Counted(whole, cached, usage)

    def _cacheable(self, tokens: int) -> int:
        return tokens - tokens % self.increment if tokens >= self.minimum else 0


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, list[str], float]]:
    """Role, tokens and the lifetime of the mark of each content block, in reading order; 0 for no mark."""
    blocks = [("tool", tool) for tool in body.get("tools") or ()]
    blocks.extend(("system", part) for part in _listed(body.get("system") or []))
    for message in body.get("messages") or ():
        blocks.extend((message["role"], part) for part in _listed(message["content"]))
    for number, (role, part) in enumerate(blocks):
        control = part.get("cache_control") or (body.get("cache_control") if number == len(blocks) - 1 else None)
        yield role, [f"<{role}>", *tokenize(flat(part) or str(part))], _lifetime(control)


def _listed(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _lifetime(control: Any) -> float:
    return _LIFETIMES[control.get("ttl", "5m")] if control else 0.0
