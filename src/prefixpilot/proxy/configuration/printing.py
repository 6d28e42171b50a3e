"""Settings as TOML that reads back to the same settings. Secrets are not in it: their files are, if they have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from prefixpilot.proxy.configuration.loading import Loaded
from prefixpilot.proxy.configuration.schema import FILE_SUFFIX, schema
from prefixpilot.proxy.configuration.values import Secret, to_toml


def as_toml(loaded: Loaded[Any]) -> str:
    """One line a setting, where it was set behind it. What is not set stands as a comment."""
    return "\n".join(_lines(loaded.settings, loaded.origins)) + "\n"


def _lines(settings: Any, origins: Mapping[str, str]) -> Iterator[str]:
    table: tuple[str, ...] = ()
    for setting in schema(type(settings)):
        if setting.names_file:
            continue
        if setting.path[:-1] != table:
            table = setting.path[:-1]
            yield f"\n[{'.'.join(table)}]"
        origin = f"  # {_one_line(origins[setting.key])}" if setting.key in origins else ""
        yield _line(setting.path[-1], reduce(getattr, setting.path, settings)) + origin


def _line(key: str, value: Any) -> str:
    if value is None:
        return f"# {key} is not set"
    if not isinstance(value, Secret):
        return f"{key} = {to_toml(value)}"
    return f"# {key} is set, and not shown" if value.file is None else f"{key}{FILE_SUFFIX} = {to_toml(value.file)}"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
