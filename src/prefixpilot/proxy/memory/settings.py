"""Settings of what is kept of conversations. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.configuration.values import Secret

MIN_STATE_BYTES: Final = 1 << 20
DAY_S: Final = 86_400.0
REDIS_SCHEMES: Final = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where conversations are kept, for how long, and what a prompt of them may hold.

    Attributes:
        state_dir: directory in which they survive the process; ``None`` keeps them in memory only.
        redis_url: a Redis or Valkey in which they survive it, and which several proxies share: redis://HOST:PORT/DB, or
            rediss:// with TLS; it goes before `state_dir` (extra ``redis``).
        redis_password: what it asks for; a user name stands in the URL, redis://USER@HOST:PORT.
        max_state_bytes: of the file there, or of what is kept in Redis; past it the conversations used longest ago go.
        conversation_ttl: seconds after its last request in which a conversation is kept, in memory and there.
        disk_timeout: seconds that a request waits for the disk; then it goes on without.
        context_window: tokens of the engine's window; ``None`` takes what the engine says of itself, if it does.

    Raises:
        ConfigError: a setting cannot be used.
    """

    state_dir: str | None = field(default=None, metadata={"flag": "--state-dir"})
    redis_url: str | None = field(default=None, metadata={"flag": "--store"})
    redis_password: Secret | None = None
    max_state_bytes: int = 1 << 30
    conversation_ttl: float = 30 * DAY_S
    disk_timeout: float = 2.0
    context_window: int | None = field(default=None, metadata={"flag": "--context-window"})

    def __post_init__(self) -> None:
        if self.state_dir is not None and not self.state_dir:
            raise ConfigError("state_dir", "is empty", "give a directory, or None")
        if self.redis_url is not None:
            _check_redis(self.redis_url)
        if self.max_state_bytes < MIN_STATE_BYTES:
            raise ConfigError("max_state_bytes", f"is {self.max_state_bytes}", f"use {MIN_STATE_BYTES} or more")
        for name in ("conversation_ttl", "disk_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number of seconds above 0")
        if self.context_window is not None and self.context_window < 1:
            raise ConfigError("context_window", f"is {self.context_window}", "use tokens of 1 or more, or None")

    @property
    def directory(self) -> Path | None:
        """Where they are kept."""
        return None if self.state_dir is None else Path(self.state_dir)


def _check_redis(url: str) -> None:
    remedy = "write redis://127.0.0.1:6379/0"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError("redis_url", f"is no URL ({error})", remedy) from None
    if parts.password is not None:
        raise ConfigError("redis_url", "holds a password", "name a file with it in store.redis_password_file")
    if parts.scheme not in REDIS_SCHEMES or not (parts.hostname or parts.path):
        raise ConfigError("redis_url", f"is {url!r}", remedy)
    database = parts.path.removeprefix("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ConfigError("redis_url", f"names a database {database!r}", f"databases have numbers: {remedy}")
