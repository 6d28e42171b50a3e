"""Settings of the treatment of ordinary requests. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from prefixpilot.errors import ConfigError

Partial = Literal["off", "units", "all"]


@dataclass(frozen=True, slots=True)
class OrdinarySettings:
    """What is done to requests without ``context_blocks``.

    Attributes:
        recognise: names of the recognisers that are on; ``("all",)`` for all of them, ``()`` for none.
        recognisers: further ones, as ``package.module:name``: objects with ``name`` and ``find``
            (:class:`prefixpilot.formats.base.Recogniser`).
        free_models: names of further models to which the order of top-level ``documents`` means nothing
            (:data:`prefixpilot.formats.arrays.FREE_MODELS` has those that are known).
        order: movable units change places, so that those that the engine has come first.
        dedupe: a text that stands in full earlier in the prompt becomes an annotation that says where.
        partial: long parts of a text, too: ``units`` in documents and memories, ``all`` in plain-text tool results too,
            ``off`` nowhere.
        min_region_tokens: shorter regions keep their order: less than a page of the engine's cache is never hit.
        min_saving_tokens: what an annotation must save, its own length counted.
        min_run_tokens: the shortest part of a text that becomes an annotation.
        annotate: the order annotation of a region names at most so many units; 0 adds none.
        max_forms: messages and regions whose form is remembered; the least recently used goes first.
        max_forms_bytes: bytes of them.

    Raises:
        ConfigError: names the field.
    """

    recognise: tuple[str, ...] = ("all",)
    recognisers: tuple[str, ...] = ()
    free_models: tuple[str, ...] = ()
    order: bool = True
    dedupe: bool = True
    partial: Partial = "units"
    min_region_tokens: int = 64
    min_saving_tokens: int = 16
    min_run_tokens: int = 128
    annotate: int = 5
    max_forms: int = 200_000
    max_forms_bytes: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        for field, what in (
            ("recognise", "recognisers, or 'all'"),
            ("recognisers", "objects"),
            ("free_models", "models"),
        ):
            names = getattr(self, field)
            if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
                raise ConfigError(field, f"is {names!r}", f"give a list of names of {what}")
            object.__setattr__(self, field, tuple(names))
        if not all(isinstance(path, str) and path.count(":") == 1 for path in self.recognisers):
            raise ConfigError("recognisers", f"is {self.recognisers!r}", "write each as package.module:name")
        for name in ("order", "dedupe"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use true or false")
        if self.partial not in get_args(Partial):
            raise ConfigError("partial", f"is {self.partial!r}", f"use one of: {', '.join(get_args(Partial))}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(name, f"is {value!r}", f"use an int of {least} or more")


_LEAST: Final = {
    "min_region_tokens": 1,
    "min_saving_tokens": 1,
    "min_run_tokens": 1,
    "annotate": 0,
    "max_forms": 1,
    "max_forms_bytes": 1,
}

EVERYTHING: Final = "all"
