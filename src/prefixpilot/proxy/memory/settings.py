"""Settings of what is kept of conversations. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefixpilot.errors import ConfigError

MIN_STATE_BYTES: Final = 1 << 20
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where conversations are kept, for how long, and what a prompt of them may hold.

    Attributes:
        state_dir: directory in which they survive the process; ``None`` keeps them in memory only.
        max_state_bytes: of the file there; past it the conversations used longest ago go.
        conversation_ttl: seconds after its last request in which a conversation is kept, in memory and there.
        disk_timeout: seconds that a request waits for the disk; then it goes on without.
        context_window: tokens of the engine's window; ``None`` takes what the engine says of itself, if it does.

    Raises:
        ConfigError: a setting cannot be used.
    """

    state_dir: str | None = field(default=None, metadata={"flag": "--state-dir"})
    max_state_bytes: int = 1 << 30
    conversation_ttl: float = 30 * DAY_S
    disk_timeout: float = 2.0
    context_window: int | None = field(default=None, metadata={"flag": "--context-window"})

    def __post_init__(self) -> None:
        if self.state_dir is not None and not self.state_dir:
            raise ConfigError("state_dir", "is empty", "give a directory, or None")
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
