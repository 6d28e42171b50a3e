"""Tables of what providers cache, for how long and at what price: data (``limits.toml``) and its reader.

A figure that no document gives is ``None``, never a guess.
"""

from __future__ import annotations

import datetime
import pkgutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from prefixpilot.errors import ConfigError


class Lifetime(NamedTuple):
    """How long an entry is kept after its last use, in seconds: surely ``at_least``, never longer than ``at_most``."""

    at_least: float
    at_most: float


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What one provider says of the cache of one family of models.

    Attributes:
        provider: ``anthropic``, ``openai``, ``gemini``, ``deepseek``, or one of a table of your own.
        models: shell patterns, against the name as :func:`model_name` writes it.
        minimum_tokens: a shorter prefix is not cached; no error tells it.
        increment_tokens: cached lengths are multiples of it.
        max_breakpoints: cache marks in one request.
        lookback: content blocks before a mark, itself included, among which an earlier entry is looked for; ``None``:
            all of them.
        ends: an entry is written at the end of each prompt too, or of its newest message, without a mark there.
        shares: what two prompts have in common becomes an entry as the second one is sent.
        default: the TTL where the request names none; a key of ``lifetimes``.
        lifetimes: of an entry, by TTL.
        write: price of a token written, by TTL, in units of an uncached input token.
        read: price of a token read, in the same unit.
        key_rate: requests a minute that one ``prompt_cache_key`` should not exceed.
        source: where this was read.
        date: when it was last checked.
    """

    provider: str
    models: tuple[str, ...]
    source: str
    date: datetime.date
    minimum_tokens: int | None = None
    increment_tokens: int | None = None
    max_breakpoints: int | None = None
    lookback: int | None = None
    ends: bool = False
    shares: bool = False
    default: str | None = None
    lifetimes: tuple[tuple[str, Lifetime], ...] = ()
    write: tuple[tuple[str, float], ...] = ()
    read: float | None = None
    key_rate: int | None = None

    def lifetime(self, ttl: str | None = None) -> Lifetime | None:
        """Of an entry with this TTL, or the default one; ``None`` if it is not published."""
        return dict(self.lifetimes).get(ttl or self.default or "")

    def write_price(self, ttl: str | None = None) -> float | None:
        """Of a token written with this TTL, or the default one."""
        return dict(self.write).get(ttl or self.default or "")

    @property
    def everywhere(self) -> bool:
        """Whether every prefix of a prompt that was sent can be read, not only those at which entries are written."""
        return self.max_breakpoints is None and not self.ends

    def cacheable(self, tokens: int) -> int:
        """How many of a prefix of ``tokens`` tokens can be cached: 0 below the minimum, else whole increments."""
        if tokens < (self.minimum_tokens or 0):
            return 0
        return tokens - tokens % (self.increment_tokens or 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """A whole table. Look-ups are O(rows)."""

    rows: tuple[CacheLimits, ...]
    hosts: tuple[tuple[str, str], ...]

    def of(self, provider: str, model: str) -> CacheLimits | None:
        """The first row of ``provider`` that matches ``model``; ``None`` if the provider is not in the table."""
        name = model_name(model)
        for row in self.rows:
            if row.provider == provider and any(fnmatchcase(name, pattern) for pattern in row.models):
                return row
        return None

    def provider(self, host: str) -> str | None:
        """Whose API answers at a host name (without port); ``None`` if no one in the table: an engine of one's own."""
        name = host.lower().rstrip(".")
        for known, provider in self.hosts:
            if name == known or (known.startswith(".") and name.endswith(known)):
                return provider
        return None


def model_name(model: str) -> str:
    """A model's name as patterns see it.

    >>> model_name("anthropic/Claude-Opus-4.6")
    'anthropic/claude-opus-4-6'
    """
    return model.lower().replace(".", "-")


@cache
def builtin_limits() -> Limits:
    """The table that comes with the package; read from it once."""
    data = pkgutil.get_data(__package__, "limits.toml")
    if data is None:
        raise ConfigError("limits.toml", "is not in the package", "install prefixpilot again")
    return read_limits(data.decode("utf-8"))


def read_limits(text: str) -> Limits:
    """A table from its TOML text; the file itself documents the keys.

    Raises:
        ConfigError: not TOML, an unknown key, a value of another type or out of range, a provider whose last row does
            not match every model, or a host of a provider without rows.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("limits", str(error), "write TOML") from None
    rows = tuple(_row(f"row[{i}]", value) for i, value in enumerate(_tables(table, "row")))
    for provider in dict.fromkeys(row.provider for row in rows):
        last = [row for row in rows if row.provider == provider][-1]
        if "*" not in last.models:
            raise ConfigError("row", f"of {provider} does not end with one for every model", 'add models = ["*"]')
    return Limits(rows, tuple(_host(f"host[{i}]", value, rows) for i, value in enumerate(_tables(table, "host"))))


def _tables(table: Mapping[str, Any], key: str) -> list[Any]:
    unknown = set(table) - {"row", "host"}
    if unknown:
        raise ConfigError(sorted(unknown)[0], "is not known", "write [[row]] and [[host]] only")
    found = table.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(key, "is not an array of tables", f"write [[{key}]]")
    return found


def _host(where: str, value: Any, rows: tuple[CacheLimits, ...]) -> tuple[str, str]:
    if not isinstance(value, dict) or set(value) != {"name", "provider"}:
        raise ConfigError(where, "has other keys", "write name and provider")
    name, provider = value["name"], value["provider"]
    if not isinstance(name, str) or not name or name != name.lower():
        raise ConfigError(f"{where}.name", f"is {name!r}", "write a host name in lower case")
    if provider not in {row.provider for row in rows}:
        raise ConfigError(f"{where}.provider", f"is {provider!r}", "name a provider that has rows")
    return name, provider


_COUNTS = ("minimum_tokens", "increment_tokens", "max_breakpoints", "lookback", "key_rate")
_FLAGS = ("ends", "shares")
_REQUIRED = ("provider", "models", "source", "date")
_KEYS = {*_REQUIRED, *_COUNTS, *_FLAGS, "default", "lifetimes", "write", "read"}


def _row(where: str, value: Any) -> CacheLimits:
    if not isinstance(value, dict):
        raise ConfigError(where, "is no table", "write [[row]]")
    for key in sorted(set(value) - _KEYS):
        raise ConfigError(f"{where}.{key}", "is not known", f"use {', '.join(sorted(_KEYS))}")
    for key in _REQUIRED:
        if key not in value:
            raise ConfigError(f"{where}.{key}", "is missing", "every row names provider, models, source and date")
    for key in ("provider", "source"):
        _require(isinstance(value[key], str) and bool(value[key]), f"{where}.{key}", value[key], "a text")
    _require(type(value["date"]) is datetime.date, f"{where}.date", value["date"], "a day, as 2026-11-30")
    for key in _COUNTS:
        count = value.get(key, 1)
        _require(type(count) is int and count >= 1, f"{where}.{key}", count, "an int of 1 or more")
    for key in _FLAGS:
        _require(isinstance(value.get(key, False), bool), f"{where}.{key}", value.get(key), "true or false")
    _require(_price(value.get("read", 1.0)), f"{where}.read", value.get("read"), "a price of 0 or more")
    lifetimes = {ttl: _lifetime(f"{where}.lifetimes.{ttl}", pair) for ttl, pair in _named(where, value, "lifetimes")}
    write = _named(where, value, "write")
    for ttl, price in write:
        _require(_price(price) and ttl in lifetimes, f"{where}.write.{ttl}", price, "a price of a TTL it has")
    default = value.get("default")
    known = default in lifetimes if lifetimes else default is None
    _require(known, f"{where}.default", default, "a TTL it has")
    return CacheLimits(
        models=_patterns(f"{where}.models", value["models"]),
        lifetimes=tuple(lifetimes.items()),
        write=tuple((ttl, float(price)) for ttl, price in write),
        **{
            key: value[key]
            for key in (*_COUNTS, *_FLAGS, "provider", "source", "date", "default", "read")
            if key in value
        },
    )


def _require(holds: bool, where: str, value: Any, what: str) -> None:
    if not holds:
        raise ConfigError(where, f"is {value!r}", f"write {what}")


def _price(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _patterns(where: str, value: Any) -> tuple[str, ...]:
    holds = isinstance(value, list) and bool(value) and all(isinstance(v, str) and v == model_name(v) for v in value)
    _require(holds, where, value, "patterns in lower case, without dots")
    return tuple(value)


def _named(where: str, value: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    found = value.get(key, {})
    _require(isinstance(found, dict), f"{where}.{key}", found, "a table by TTL")
    return list(found.items())


def _lifetime(where: str, pair: Any) -> Lifetime:
    holds = isinstance(pair, list) and len(pair) == 2 and all(map(_price, pair)) and 0 < pair[0] <= pair[1]
    _require(holds, where, pair, "[at least, at most] in seconds")
    return Lifetime(float(pair[0]), float(pair[1]))
