"""Writes the generated parts of ``docs/configuration.md``: the tables of settings, and a file with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from itertools import groupby
from typing import Any, Final

from tests.docs.pages import between

from prefixpilot.cli.serve_settings import EMBEDDED, ServeSettings
from prefixpilot.proxy.configuration import Secret, Setting, schema
from prefixpilot.proxy.configuration.values import to_toml

ENGINE: Final = "http://127.0.0.1:8000"
EXAMPLES: Final[Mapping[str, Any]] = {
    "cache_tokens": 1_000_000,
    "max_displacement": 8,
    "engines": ("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
    "fleet.standby": ("http://127.0.0.1:8001",),
    "index": "index.json.gz",
    "store.state_dir": "/var/lib/prefixpilot",
    "store.redis_url": "redis://127.0.0.1:6379/0",
    "store.redis_password_file": "/etc/prefixpilot/redis-password",
    "store.context_window": 32_768,
    "cache.replay": "tcp://*:5558",
    "cache.tokenizer": "/models/our-model",
    "cache.page_size": 16,
    "admin.token_file": "/etc/prefixpilot/admin-token",
    "tenants.keys": {64 * "0": "research"},
    "tenants.header": "X-Tenant",
    "tenants.max_in_flight": 200,
    "tenants.cache_salt_secret_file": "/etc/prefixpilot/salt",
    "ordinary.recognisers": ("our_package.formats:CARDS",),
    "ordinary.free_models": ("our-granite",),
    "embedded.model": "model.gguf",
    "embedded.context": 8192,
    "embedded.threads": 4,
    "embedded.max_slot_bytes": 1 << 30,
}
"""Of settings that have no default."""


def written(page: str) -> str:
    """The page with both parts as the dataclasses are now."""
    return between(between(page, "settings", tables()), "sample", f"```toml\n{sample()}```\n")


def tables() -> str:
    """A heading and a table for each table of settings."""
    return "\n".join(_table(name, tuple(group)) for name, group in _by_table())


def _by_table() -> Iterator[tuple[str, Iterator[Setting]]]:
    return groupby(schema(ServeSettings), lambda setting: ".".join(setting.path[:-1]))


def _table(name: str, settings: tuple[Setting, ...]) -> str:
    heading = f"### `[{name}]`" if name else "### Without a table"
    rows = "\n".join(_row(setting) for setting in settings)
    return f"{heading}\n\n| setting | default | meaning | flag and variable |\n|---|---|---|---|\n{rows}\n"


def _row(setting: Setting) -> str:
    flag = "" if setting.flag is None else f"`{setting.flag}` "
    doc = setting.doc.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{setting.path[-1]}` | {_default(setting)} | {doc} | {flag}`{setting.env}` |"


def _default(setting: Setting) -> str:
    if setting.default is MISSING:
        return "must be given"
    return "not set" if _is_unset(setting) else f"`{to_toml(setting.default)}`"


def _is_unset(setting: Setting) -> bool:
    return setting.default is None or (isinstance(setting.default, tuple | dict) and not setting.default)


def sample() -> str:
    """A file with every setting: those without a default as comments, all others with theirs."""
    parts = []
    for name, group in _by_table():
        lines = [_line(setting) for setting in group if not _is_secret(setting)]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def _is_secret(setting: Setting) -> bool:
    """A secret in the file itself: the sample names a file for it."""
    return setting.flag is None and Secret in getattr(setting.hint, "__args__", ())


def _line(setting: Setting) -> str:
    if setting.key == "engine":
        return f"engine = {to_toml(ENGINE)}   # or {to_toml(EMBEDDED)}"
    if _is_unset(setting):
        return f"# {setting.path[-1]} = {to_toml(EXAMPLES[setting.key])}"
    return f"{setting.path[-1]} = {to_toml(setting.default)}"
