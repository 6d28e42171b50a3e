"""JSON Lines, read one line at a time, and errors that name the line.

Lines end with "\\n" only: U+2028 and its like are part of a text. Files may be gzip-compressed; the content decides,
but a file named ``.gz`` must be. No line is skipped: one that is empty or is not a JSON object is an error.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from prefixpilot.core import MAX_BLOCK_TOKENS, BlockId
from prefixpilot.errors import TraceError

MAX_LINE_BYTES: Final = 256 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Record:
    """One line: a JSON object.

    Attributes:
        where: ``FILE:LINE``.
        values: the object.
    """

    where: str
    values: Mapping[str, Any]

    def error(self, name: str, reason: str, remedy: str) -> TraceError:
        """An error about one field of this line."""
        return TraceError(f"{self.where}: {name}", reason, remedy)

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a non-empty string; ``default`` where it is missing, if there is one."""
        value = self._get(name, default)
        if not isinstance(value, str) or not value:
            raise self.error(name, f"is {shown(value)}", "give a non-empty string")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A field that is an int of 0 or more; ``default`` where it is missing, if there is one."""
        value = self._get(name, default)
        if not is_count(value):
            raise self.error(name, f"is {shown(value)}", "give an int from 0 to 2**40")
        return int(value)

    def list(self, name: str) -> list[Any]:
        """A field that is a list."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self.error(name, f"is {shown(value)}", "give a list")
        return value

    def block_id(self, name: str) -> BlockId:
        """A field that is a block id: an int or a string."""
        value = self._get(name, None)
        if not is_block_id(value):
            raise self.error(name, f"is {shown(value)}", "give an int or a string")
        return value  # type: ignore[no-any-return]

    def _get(self, name: str, default: Any) -> Any:
        if name in self.values:
            return self.values[name]
        if default is None:
            raise self.error(name, "is missing", "add it")
        return default


def is_count(value: Any) -> bool:
    """Whether a JSON value is an int of 0 or more, and no more than tokens of a block may be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_BLOCK_TOKENS


def is_block_id(value: Any) -> bool:
    """Whether a JSON value can name a block."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """A JSON value for a message, on one line and cut short."""
    written = json.dumps(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def read_records(path: Path) -> Iterator[Record]:
    """The lines of a file, as they are asked for. Memory: one line.

    Raises:
        TraceError: the file cannot be opened or read, is not what its name says, or a line is not a JSON object.
    """
    number = 0
    try:
        with ExitStack() as stack:
            stream = _open(path, stack)
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield Record(f"{path}:{number}", _parse(f"{path}:{number}", line))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path}:{number + 1}: gzip", f"{_reason(error)}", "compress the file again") from None
    except OSError as error:
        raise TraceError(str(path), _reason(error), "give a file that can be read") from None


def _open(path: Path, stack: ExitStack) -> IO[bytes] | gzip.GzipFile:
    raw = stack.enter_context(path.open("rb"))
    if raw.peek(2)[:2] == _GZIP_MAGIC:
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    if path.suffix == ".gz":
        raise TraceError(str(path), "is not gzip-compressed", "compress it, or rename it without .gz")
    return raw


def _parse(where: str, line: bytes) -> Mapping[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(where, f"is longer than {MAX_LINE_BYTES >> 20} MiB", "write one JSON object a line")
    if not line.strip():
        raise TraceError(where, "is an empty line", "take it out")
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_object, **_NUMBERS)
    except UnicodeDecodeError as error:
        raise TraceError(where, f"is not UTF-8 (byte {error.start})", "write the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise TraceError(where, f"is not JSON ({error.msg}, column {error.colno})", "write one object a line") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(where, f"is not usable JSON ({_reason(error)})", "write one JSON object a line") from None
    if not isinstance(value, dict):
        raise TraceError(where, f"is {shown(value)}, not an object", "write one JSON object a line")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError(f"{written} is too large a number")
    return value


_NUMBERS: Final[Any] = {"parse_constant": _refuse_constant, "parse_float": _finite}


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
