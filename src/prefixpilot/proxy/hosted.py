"""What a hosted provider is told of a request: Anthropic's cache marks, OpenAI's cache key. Nothing of it is prompt.

Marks are set in the body as it is about to be sent, and so on its final texts. The key is a hash of what all requests
of an application have in common; text that a rule calls volatile, and documents, are left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from prefixpilot.apis.base import Prompt, Segment
from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import TenantId
from prefixpilot.jsontext import Edit, JsonText
from prefixpilot.pieces import Slot, Span, apply, fill
from prefixpilot.providers.breakpoints import plan_breakpoints
from prefixpilot.providers.cache_key import KeyShards, cache_key_edit, stable_key
from prefixpilot.providers.limits import Limits, builtin_limits
from prefixpilot.proxy.hosted_settings import ProviderSettings
from prefixpilot.proxy.steady import Excluded
from prefixpilot.volatile.base import VolatileRules
from prefixpilot.volatile.rules import system_texts, treat

_ALL_RULES = VolatileRules(clock="round", ids=True, memory=True, billing_header=True)


def provider_of(settings: ProviderSettings, engine: str, limits: Limits) -> str | None:
    """Whose API answers at the engine's URL; ``None``: no provider's that we know."""
    if settings.upstream == "auto":
        return limits.provider(urlsplit(engine).hostname or "")
    return None if settings.upstream == "other" else settings.upstream


class Hosted:
    """Tells the provider what is switched on.

    Args:
        engine: URL of the upstream.
        shards: of cache keys.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        engine: str,
        shards: KeyShards,
        clock: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits or builtin_limits()
        self.provider = provider_of(settings, engine, self._limits)
        self.sets_key = settings.cache_key and self.provider == "openai"
        self.sets_marks = settings.cache_marks and self.provider == "anthropic"
        self._shards = shards
        self._clock = clock

    def key(
        self, client: Prompt, sent: Prompt, excluded: Excluded, seed: bytes, tenant: TenantId, *, counted: bool
    ) -> tuple[Edit, ...]:
        """The cache key of a request. O(tools + system text).

        Args:
            client: the prompt as it came.
            sent: with its tools in the order in which they are sent.
            excluded: documents in its system text.
            seed: of the conversation.
            counted: whether it is sent, and counts against the rate of its key.
        """
        if not self.sets_key or cache_key_edit(client, "") is None:
            return ()
        whole = stable_key(sent, texts=_steady_texts(client, excluded), scope=tenant)
        if whole is None:
            return ()
        key = self._shards.key(whole, seed, self._clock()) if counted else self._shards.preview(whole, seed)
        edit = cache_key_edit(client, key)
        return () if edit is None else (edit,)

    def marked(self, data: bytes, stable: int | None) -> bytes | None:
        """A Messages body with cache marks; ``None`` if none is to be set. O(bytes).

        ``stable``: see :func:`prefixpilot.providers.breakpoints.plan_breakpoints`.
        """
        source = JsonText.read(data)
        model = source.value.get("model")
        limits = self._limits.of("anthropic", model if isinstance(model, str) else "")
        if limits is None:
            return None
        plan = plan_breakpoints(source.value, limits, self._settings.breakpoints, estimate_tokens, stable=stable)
        return source.edited(plan.edits) if plan.edits else None

    def clear(self) -> None:
        """Forget the rates of all keys."""
        self._shards.clear()


def _steady_texts(client: Prompt, excluded: Excluded) -> dict[tuple[str | int, ...], str]:
    """System texts without what changes from request to request: for the key only, nothing of it is sent."""
    made = treat(client, _ALL_RULES, to_anthropic=False, stated=True, excluded=excluded)
    return {
        segment.pointer: _without(
            segment,
            [*excluded.get(segment.pointer, ()), *(c.span for c in made.changes if c.pointer == segment.pointer)],
        )
        for segment in system_texts(client)
    }


def _without(segment: Segment, spans: Sequence[Span]) -> str:
    slots: list[Slot] = []
    for start, end in sorted(spans):
        at = max(start, slots[-1].span.end) if slots else start
        if at < end:
            slots.append(Slot(Span(at, end), ()))
    return apply(fill(len(segment.text), slots), segment.text)
