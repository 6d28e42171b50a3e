"""What settings there are: the fields of a dataclass and of the dataclasses in it, with their documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from prefixpilot.proxy.configuration.values import Secret

ENV_PREFIX: Final = "PREFIXPILOT_"
FILE_SUFFIX: Final = "_file"
_ATTRIBUTE: Final = re.compile(r"(?P<names>[a-z]\w*(?:, [a-z]\w*)*): (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        path: its tables and its key, ``("admin", "token")``.
        hint: type of the value.
        default: ``dataclasses.MISSING`` if it must be given.
        doc: what it is for, one paragraph.
        flag: on the command line; ``None``: not there, because others see a command line.
        names_file: this one is a path, and what it is for stands in that file: a :class:`Secret`.
        first_of: name of a list beside it whose first element it is, where it is not given itself; else ``None``.
    """

    path: tuple[str, ...]
    hint: Any
    default: Any
    doc: str
    flag: str | None
    names_file: bool = False
    first_of: str | None = None

    @property
    def key(self) -> str:
        """As documents write it: ``admin.token``."""
        return ".".join(self.path)

    @property
    def env(self) -> str:
        """The variable of the environment: ``PREFIXPILOT_ADMIN_TOKEN``."""
        return ENV_PREFIX + "_".join(self.path).upper()

    @property
    def field(self) -> tuple[str, ...]:
        """Path of the dataclass field that it sets."""
        return (*self.path[:-1], self.path[-1].removesuffix(FILE_SUFFIX)) if self.names_file else self.path


def schema(cls: type[Any]) -> tuple[Setting, ...]:
    """Every setting of a dataclass, tables last, in the order of the fields.

    A field may name its flag: ``field(metadata={"flag": "--model"})``.

    Raises:
        TypeError: two settings would have one variable or one flag.
    """
    settings = tuple(_settings(cls, ()))
    for names in ([s.env for s in settings], [s.flag for s in settings if s.flag]):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TypeError(f"two settings are called {twice[0]}")
    return settings


def _settings(cls: type[Any], table: tuple[str, ...]) -> Iterator[Setting]:
    hints, docs = get_type_hints(cls), documented(cls)
    nested = {f.name: hints[f.name] for f in fields(cls) if _is_table(hints[f.name])}
    for field in fields(cls):
        if field.name in nested:
            continue
        path, hint, doc = (*table, field.name), hints[field.name], docs.get(field.name, "")
        default = field.default if field.default_factory is MISSING else field.default_factory()
        flag = field.metadata.get("flag", "--" + "-".join(path).replace("_", "-"))
        if Secret not in (hint, *get_args(hint)):
            yield Setting(path, hint, default, doc, flag, first_of=field.metadata.get("first_of"))
        else:
            yield Setting(path, hint, default, doc, None)
            path = (*table, field.name + FILE_SUFFIX)
            yield Setting(path, str | NoneType, default, f"file that holds: {doc}", flag + "-file", names_file=True)
    for name, each in nested.items():
        yield from _settings(each, (*table, name))


def _is_table(hint: Any) -> bool:
    return is_dataclass(hint) and hint is not Secret


def documented(cls: type[Any]) -> Mapping[str, str]:
    """The ``Attributes:`` of a class's docstring and of its bases' docstrings, by name; wrapped lines joined."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found.update(_attributes(inspect.cleandoc(base.__doc__ or "")))
    return found


def _attributes(doc: str) -> Mapping[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in doc.partition("Attributes:\n")[2].split("\n"):
        if line and not line.startswith(" "):
            break
        entry = _ATTRIBUTE.fullmatch(line[4:]) if not line.startswith(" " * 5) else None
        if entry is not None:
            current = [entry["text"]]
            found.update(dict.fromkeys(entry["names"].split(", "), current))
        else:
            current.append(line.strip())
    return {name: " ".join(lines).replace("``", "").strip() for name, lines in found.items()}
