"""Values of settings: from a text (flags, environment), from TOML, and back to TOML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from prefixpilot.errors import ConfigError

MAX_SECRET_BYTES: Final = 64 * 1024
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is never shown. Its ``repr`` does not hold it.

    Attributes:
        value: the text itself.
        file: where it was read from; ``None`` if it was given as it is.
    """

    value: str = field(repr=False)
    file: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.value:
            raise ConfigError("secret", "is empty", "give a text of one character or more")

    @property
    def data(self) -> bytes:
        """The text in UTF-8."""
        return self.value.encode()

    @classmethod
    def read(cls, path: str) -> Secret:
        """The secret in a file, without the white space around it.

        Raises:
            ValueError: the file cannot be read, or holds nothing or no text.
        """
        try:
            with Path(path).open("rb") as file:
                text = file.read(MAX_SECRET_BYTES).decode().strip()
        except OSError as error:
            raise ValueError(f"names {path}, which cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise ValueError(f"names {path}, which is no text in UTF-8") from None
        if not text:
            raise ValueError(f"names {path}, which is empty")
        return cls(text, path)


def described(hint: Any) -> str:
    """What a value of that type is, in words.

    >>> described(int | None), described(Literal["on", "off"])
    ('an integer', 'one of: on, off')
    """
    arms = [arm for arm in _arms(hint) if arm is not NoneType]
    if len(arms) > 1:
        return " or ".join(described(arm) for arm in arms)
    hint = arms[0]
    if get_origin(hint) is Literal:
        choices = ", ".join(str(choice) for choice in get_args(hint))
        return f"one of: {choices}" if len(get_args(hint)) > 1 else choices
    return _WORDS[get_origin(hint) or hint]


def from_text(hint: Any, text: str) -> Any:
    """The value that a flag or a variable of the environment stands for. An empty text is ``None`` where that may be.

    Lists are written ``a,b`` and tables ``a=b,c=d``.

    Raises:
        ValueError: it is no such value.
    """
    arms = _arms(hint)
    if not text and NoneType in arms:
        return None
    for arm in arms:
        if arm is not NoneType:
            try:
                return _READERS[get_origin(arm) or arm](arm, text)
            except ValueError:
                continue
    raise ValueError


def from_toml(hint: Any, value: Any) -> Any:
    """The value that a TOML value stands for. Raises ValueError: it is of another type."""
    for arm in _arms(hint):
        if arm is not NoneType and _is(arm, value):
            return _settled(arm, value)
    raise ValueError


def to_toml(value: Any) -> str:
    """A TOML value. Raises TypeError for what no setting is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(to_toml(each) for each in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(key)} = {to_toml(each)}" for key, each in value.items()) + "}"
    raise TypeError(f"a setting is no {type(value).__name__}")


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is(hint: Any, value: Any) -> bool:
    """Whether a TOML value is of a type; an integer is a float too, a boolean is no integer."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return value in get_args(hint)
    if kind is tuple:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str if kind is Secret else kind)


def _settled(hint: Any, value: Any) -> Any:
    kind = get_origin(hint) or hint
    if kind in (tuple, float, Secret):
        return kind(value)
    return dict(value) if kind is Mapping else value


def _read_bool(hint: Any, text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _read_choice(hint: Any, text: str) -> str:
    if text not in get_args(hint):
        raise ValueError
    return text


def _read_text(hint: Any, text: str) -> str:
    text.encode()  # what is no UTF-8 in the environment cannot be written down again
    return text


def _read_list(hint: Any, text: str) -> tuple[str, ...]:
    return tuple(_read_text(str, part.strip()) for part in text.split(",") if part.strip())


def _read_table(hint: Any, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in _read_list(hint, text)]
    if not all(key and equals for key, equals, _ in pairs):
        raise ValueError
    return {key.strip(): value.strip() for key, _, value in pairs}


_READERS: Final[Mapping[Any, Any]] = {
    bool: _read_bool,
    int: lambda hint, text: int(text),
    float: lambda hint, text: float(text),
    str: _read_text,
    Literal: _read_choice,
    tuple: _read_list,
    Mapping: _read_table,
    Secret: lambda hint, text: Secret(_read_text(hint, text)),
}
_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
    Mapping: "a table of texts",
    Secret: "a text",
}
