"""Reads settings once: flags go before the environment, that before the file, that before the defaults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.configuration.schema import ENV_PREFIX, Setting, schema
from prefixpilot.proxy.configuration.values import Secret, described, from_text, from_toml

MAX_FILE_BYTES: Final = 1 << 20
NEAR: Final = 0.8
"""How alike an unknown variable must be to a known one to be taken for a slip of it (``difflib`` ratio)."""
_OF_KUBERNETES: Final = re.compile(r"PREFIXPILOT(_\w+)?_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
"""What Kubernetes puts into every container of a namespace that has a service called ``prefixpilot``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where settings come from.

    Attributes:
        flags: texts by flag, those that were given; ``{"--port": "9000"}``.
        environ: the environment, all of it.
        file: a TOML file, or ``None``.
        written: by flag, what stood on the command line in its place; errors name that.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Settings, and where each was set.

    Attributes:
        origins: flag, variable or file by key; a key that is not there has its default.
        warnings: what was left out, one sentence each.
    """

    settings: T
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as one source gives it."""

    setting: Setting
    value: Any
    origin: str


def load(cls: type[T], sources: Sources) -> Loaded[T]:
    """Read, merge and check. The file is read now, and not again.

    Raises:
        ConfigError: an unknown or missing key, a value of another type, or one that the dataclass refuses. It names
            the setting, and the flag, variable or place in the file that gave it.
    """
    settings = schema(cls)
    warnings: list[str] = []
    merged: dict[tuple[str, ...], _Given] = {}
    for given in (
        _of_file(sources.file, settings),
        _of_environ(sources.environ, settings, warnings),
        _of_flags(sources, settings),
    ):
        merged.update(_once(given))
    for setting in settings:
        _take_first(setting, merged)
    origins = {".".join(path): entry.origin for path, entry in merged.items()}
    for setting in settings:
        if setting.default is MISSING and setting.path not in merged:
            key = setting.path[-1]
            raise ConfigError(
                setting.key, "is not given", f"use {setting.flag}, {setting.env} or `{key} =` in the file"
            )
    return Loaded(
        _build(cls, (), {path: entry.value for path, entry in merged.items()}, origins), origins, (*warnings,)
    )


def _take_first(setting: Setting, merged: dict[tuple[str, ...], _Given]) -> None:
    """What is not given is the first of the list that says more."""
    if setting.first_of is None or setting.path in merged:
        return
    several = merged.get((*setting.path[:-1], setting.first_of))
    if several is not None and several.value:
        merged[setting.path] = _Given(setting, several.value[0], several.origin)


def _once(given: Iterator[_Given]) -> dict[tuple[str, ...], _Given]:
    """By field; a secret and a file with it cannot both come from one source."""
    found: dict[tuple[str, ...], _Given] = {}
    for entry in given:
        field_path = entry.setting.field
        if field_path in found:
            reason = f"is given twice ({found[field_path].origin} and {entry.origin})"
            raise ConfigError(".".join(field_path), reason, "give one of them")
        if entry.setting.names_file and entry.value is not None:
            try:
                entry = _Given(entry.setting, Secret.read(entry.value), entry.origin)
            except ValueError as error:
                raise ConfigError(
                    entry.setting.key, f"{error} (set by {entry.origin})", "give a file that is"
                ) from None
        found[field_path] = entry
    return found


def _of_flags(sources: Sources, settings: tuple[Setting, ...]) -> Iterator[_Given]:
    by_flag = {setting.flag: setting for setting in settings if setting.flag}
    for flag, text in sources.flags.items():
        written = sources.written.get(flag, flag)
        yield _Given(by_flag[flag], _text(by_flag[flag], text, written), written)


def _of_environ(environ: Mapping[str, str], settings: tuple[Setting, ...], warnings: list[str]) -> Iterator[_Given]:
    """A variable that is nearly one of ours is a slip; others may be meant for something else."""
    by_name = {setting.env: setting for setting in settings}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name == ENV_PREFIX + "CONFIG" or _OF_KUBERNETES.fullmatch(name):
            continue
        text = environ[name]
        if name in by_name and text.startswith("tcp://"):
            warnings.append(f"{name}={text} looks as if Kubernetes had set it for a service, and is left out")
        elif name in by_name:
            yield _Given(by_name[name], _text(by_name[name], text, name), name)
        else:
            near = get_close_matches(name, by_name, 1, NEAR)
            if near:
                raise ConfigError(name, "is no variable that is read", f"{near[0]} is one that is alike")
            warnings.append(f"{name} is no variable that is read, and is left out")


def _text(setting: Setting, text: str, origin: str) -> Any:
    try:
        return from_text(setting.hint, text)
    except ValueError:
        shown = "what is given" if setting.flag is None else repr(text)
        raise ConfigError(setting.key, f"is {shown} (set by {origin})", f"use {described(setting.hint)}") from None


def _of_file(path: Path | None, settings: tuple[Setting, ...]) -> Iterator[_Given]:
    if path is None:
        return
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), f"is no TOML: {error}", "correct that line") from None
    yield from _of_table(document, (), {s.path: s for s in settings}, _Place(path, text))


@dataclass(frozen=True, slots=True)
class _Place:
    """A file, to say where in it a key stands."""

    path: Path
    text: str

    def of(self, key: tuple[str, ...]) -> str:
        """File and line; the file alone where a key is written in a way that is not searched for."""
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.split("\n"), 1):
            words = line.partition("#")[0].strip()
            if words.startswith("["):
                table = tuple(part.strip(" \"'") for part in words.strip("[]").split("."))
            name = words.partition("=")[0]
            parts = (*table, *(part.strip(" \"'") for part in name.split("."))) if "=" in words else table
            if parts == key:
                return f"{self.path}:{number}"
        return str(self.path)


def _of_table(
    table: Mapping[str, Any], at: tuple[str, ...], settings: Mapping[tuple[str, ...], Setting], place: _Place
) -> Iterator[_Given]:
    for name, value in table.items():
        path = (*at, name)
        setting = settings.get(path)
        if setting is not None:
            yield _Given(setting, _toml(setting, value, place), place.of(path))
        elif isinstance(value, dict) and any(known[: len(path)] == path for known in settings):
            yield from _of_table(value, path, settings, place)
        else:
            raise ConfigError(".".join(path), f"is no setting ({place.of(path)})", _nearest(path, settings))


def _nearest(path: tuple[str, ...], settings: Mapping[tuple[str, ...], Setting]) -> str:
    keys = {setting.key: setting for setting in settings.values()}
    same = [key for key, setting in keys.items() if setting.path[-1] == path[-1]]
    near = same or get_close_matches(".".join(path), keys, 1)
    tables = {".".join(setting.path[:-1]): setting.path[:-1] for setting in settings.values() if len(setting.path) > 1}
    table = get_close_matches(".".join(path), tables, 1, NEAR) if not same else []
    if table:
        return f"did you mean [{table[0]}]?"
    return f"did you mean {near[0]}?" if near else "see `prefixpilot serve --print-config` for all of them"


def _toml(setting: Setting, value: Any, place: _Place) -> Any:
    try:
        return from_toml(setting.hint, value)
    except ValueError:
        shown = "what is given" if setting.flag is None else repr(value)
        remedy = f"use {described(setting.hint)}"
        raise ConfigError(setting.key, f"is {shown} ({place.of(setting.path)})", remedy) from None


def _read(path: Path) -> str:
    remedy = "give a TOML file of settings"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError("--config", f"{path} cannot be read ({error.strerror})", remedy) from None
    except UnicodeDecodeError:
        raise ConfigError("--config", f"{path} is no text in UTF-8", remedy) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError("--config", f"{path} holds more than {MAX_FILE_BYTES} bytes", remedy)
    return text.replace("\r\n", "\n")


def _build(cls: type[T], at: tuple[str, ...], values: Mapping[tuple[str, ...], Any], origins: Mapping[str, str]) -> T:
    hints = get_type_hints(cls)
    given: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        path, hint = (*at, each.name), hints[each.name]
        if is_dataclass(hint) and hint is not Secret:
            given[each.name] = _build(hint, path, values, origins)  # type: ignore[arg-type]
        elif path in values:
            given[each.name] = values[path]
    try:
        return cls(**given)
    except ConfigError as error:
        key = ".".join((*at, error.field))
        origin = f" (set by {origins[key]})" if key in origins else ""
        raise ConfigError(key, f"{error.reason}{origin}", error.remedy) from None
