"""Settings of how several engines are looked after. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass

from prefixpilot.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How several engines are looked after. Unused with one.

    Attributes:
        check_interval: seconds between two looks at the health of each engine (GET /health, within `ready_timeout`).
        eject_after: failures in a row, of looks and of connections, after which an engine gets no more requests.
        return_after: looks in a row that find it well, after which it gets requests again.
        retries: other engines that are tried with a request before it is given up; only while nothing of an answer has
            come.
        standby: base URLs, out of `engines`, of those that get requests only while no other engine is fit: theirs come
            from another proxy.

    Raises:
        ConfigError: a setting cannot be used.
    """

    check_interval: float = 2.0
    eject_after: int = 3
    return_after: int = 2
    retries: int = 2
    standby: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.check_interval > 0:
            raise ConfigError("check_interval", f"is {self.check_interval!r}", "use a number of seconds above 0")
        for name, least in (("eject_after", 1), ("return_after", 1), ("retries", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(name, f"is {value!r}", f"use an int of {least} or more")
