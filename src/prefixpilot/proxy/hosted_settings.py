"""Settings of what hosted providers are told about their caches. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from prefixpilot.errors import ConfigError
from prefixpilot.providers.breakpoints import BreakpointSettings
from prefixpilot.providers.cache_key import KEY_RATE

UpstreamKind = Literal["auto", "anthropic", "openai", "gemini", "deepseek", "other"]


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """What the provider behind the engine's URL is told. All of it is off unless switched on.

    Attributes:
        upstream: whose API it is; auto: as the host of the engine's URL says. Name it where a gateway stands between.
        cache_marks: set cache_control marks in requests to Anthropic's Messages API that have none.
        cache_key: set prompt_cache_key in requests to OpenAI that have none.
        key_rate: requests a minute that one such key may carry; beyond that several keys stand for one.
        breakpoints: where the marks stand, and for how long.
    """

    upstream: UpstreamKind = "auto"
    cache_marks: bool = False
    cache_key: bool = False
    key_rate: int = KEY_RATE
    breakpoints: BreakpointSettings = field(default_factory=BreakpointSettings)

    def __post_init__(self) -> None:
        if self.upstream not in get_args(UpstreamKind):
            raise ConfigError("upstream", f"is {self.upstream!r}", f"use one of: {', '.join(get_args(UpstreamKind))}")
        for name in ("cache_marks", "cache_key"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use true or false")
        if type(self.key_rate) is not int or self.key_rate < 1:
            raise ConfigError("key_rate", f"is {self.key_rate!r}", "use an int of 1 or more")
