"""Settings of how the engine's cache is known. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from prefixpilot.engines.endpoints import rank_address, unusable
from prefixpilot.errors import ConfigError

TokenIds = Literal["auto", "engine", "local", "off"]
OFF: Final = "off"
AUTO: Final = "auto"
_WRITE: Final = {
    "events": "write tcp://127.0.0.1:5557, as the engine's --kv-events-config has it, or auto, or off",
    "replay": 'write tcp://127.0.0.1:5558, as "replay_endpoint" in the engine\'s --kv-events-config, or leave it out',
}


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How the engine's cache is known. All of it is off unless switched on, but for hosted providers.

    Attributes:
        events: ZeroMQ endpoints of the engine's KV events, with commas between them, as the engine's own configuration
            writes them (of several engines as many of each, in the order of `engines`); auto: those that the engine
            lists (vLLM); off: none.
        replay: endpoints at which lost events are asked for again, in parallel with `events`; unused with auto and off.
        ranks: data-parallel ranks behind each of those endpoints; rank r has the port of rank 0 plus r.
        token_ids: where the token ids of a prompt come from: engine (its `/tokenize`, beside the request), local
            (`tokenizer`), off (what events tell); auto: local if there is a tokenizer, else engine if there are events.
        tokenizer: directory with `tokenizer.json`, and with `tokenizer_config.json` or `chat_template.jinja` for chats.
        page_size: tokens in a page of the engine's cache (vLLM `--block-size`, SGLang `--page-size`); not set: as the
            engine tells (`/metrics`, `/server_info`), else 16. Its capacity is `cache_tokens`; not set: as it tells.
        hosted: predict what a hosted provider (`providers.upstream`) reads from its cache, by what it documents and
            reports. Unused with events and token ids; it costs some CPU time a request, beside the requests.
        max_requests: requests that may be followed at once, and contexts whose pages are known; more are not followed.
        tokenize_concurrency: requests for token ids under way at once.
        tokenize_timeout: seconds that one of them may take.

    Raises:
        ConfigError: a setting cannot be used.
    """

    events: str = OFF
    replay: str | None = None
    ranks: int = 1
    token_ids: TokenIds = "auto"
    tokenizer: str | None = None
    page_size: int | None = None
    hosted: bool = True
    max_requests: int = 20_000
    tokenize_concurrency: int = 4
    tokenize_timeout: float = 5.0

    def __post_init__(self) -> None:
        for name in ("page_size", "ranks", "max_requests", "tokenize_concurrency"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        if self.events not in (OFF, AUTO):
            _check_endpoints("events", self.endpoints, self.ranks)
        if self.replay is not None:
            _check_endpoints("replay", _split(self.replay), self.ranks)
            if self.endpoints and len(self.replay_endpoints) != len(self.endpoints):
                raise ConfigError("replay", "has not as many endpoints as events", "give one for each")
        if self.token_ids not in get_args(TokenIds):
            raise ConfigError("token_ids", f"is {self.token_ids!r}", f"use one of: {', '.join(get_args(TokenIds))}")
        if self.token_ids == "local" and self.tokenizer is None:
            raise ConfigError("token_ids", "is local, but no tokenizer is named", "set cache.tokenizer to a directory")
        if not isinstance(self.hosted, bool):
            raise ConfigError("hosted", f"is {self.hosted!r}", "use true or false")
        if not self.tokenize_timeout > 0:
            raise ConfigError("tokenize_timeout", f"is {self.tokenize_timeout!r}", "use a number of seconds above 0")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints that are named; empty with ``off`` and ``auto``."""
        return () if self.events in (OFF, AUTO) else _split(self.events)

    @property
    def replay_endpoints(self) -> tuple[str, ...]:
        """Parallel to ``endpoints``, or empty."""
        return () if self.replay is None or not self.endpoints else _split(self.replay)

    def of_engine(self, number: int, count: int) -> CacheSettings:
        """The settings of one of several engines, each with the same number of endpoints.

        Raises:
            ConfigError: their number is no multiple of ``count``, or one is named twice for this engine.
        """
        each, rest = divmod(len(self.endpoints), count)
        if rest or (self.endpoints and not each):
            reason = f"has {len(self.endpoints)} endpoints for {count} engines"
            raise ConfigError("events", reason, "give as many for each engine, or auto")
        if not each:
            return self
        mine = slice(number * each, (number + 1) * each)
        for name, endpoints in (("events", self.endpoints[mine]), ("replay", self.replay_endpoints[mine])):
            _check_distinct(name, endpoints, self.ranks)
        replay = ",".join(self.replay_endpoints[mine]) or None
        return replace(self, events=",".join(self.endpoints[mine]), replay=replay)

    @property
    def tokens_from(self) -> Literal["engine", "local", "off"]:
        """Where token ids come from, ``auto`` decided."""
        if self.token_ids != AUTO:
            return self.token_ids
        if self.tokenizer is not None:
            return "local"
        return "off" if self.events == OFF else "engine"

    @property
    def on(self) -> bool:
        """Whether requests are followed at all."""
        return self.events != OFF or self.tokens_from != "off"


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _check_endpoints(name: str, endpoints: tuple[str, ...], ranks: int) -> None:
    for endpoint in endpoints:
        reason = unusable(endpoint, ranks)
        if reason is not None:
            raise ConfigError(name, f"has {endpoint!r}, which {reason}", _WRITE[name])


def _check_distinct(name: str, endpoints: tuple[str, ...], ranks: int) -> None:
    """Of one engine, each rank of each endpoint is another one."""
    seen = set[str]()
    for endpoint in endpoints:
        ports = {rank_address(endpoint, rank) for rank in range(ranks)}
        if ports & seen:
            twice = f"names {min(ports & seen)} twice for one engine"
            raise ConfigError(name, twice, "name each endpoint once; cache.ranks adds the ports behind it")
        seen |= ports
