"""Logs of requests to models, as applications and gateways write them: one JSON object a line, read with patience.

A line is the body of a request, or an object that holds one:

* OpenAI Batch: ``{"custom_id", "method", "url", "body"}``; Anthropic's Message Batches: ``{"custom_id", "params"}``;
* ``{"request": {...}}`` or ``{"body": {...}}``, with any of ``url``/``path``/``endpoint``, ``headers``, ``response``;
* the body alone: ``{"model", "messages", ...}``.

A body may be a string of JSON, as some gateways log it. A line that holds none of these is told and counted, and
reading goes on: a log is evidence, not input that someone can mend. Lines end with "\\n" only; the file may be
gzip-compressed, and one that ends too early (a log that is still written, a disk that was full) is read as far as it
goes.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeAlias
from zlib import error as zlib_error

from prefixpilot.apis import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from prefixpilot.errors import TraceError

MAX_LINE_BYTES: Final = 64 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_PIECE: Final = 1 << 16
_HOLDERS: Final = ("body", "params", "request", "request_body", "kwargs")
_PATHS: Final = ("url", "path", "endpoint", "target")
_ENDINGS: Final = (
    ("/chat/completions", CHAT),
    ("/completions", COMPLETIONS),
    ("/responses", RESPONSES),
    ("/messages", MESSAGES),
)
"""What a path ends with, the longest first."""

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class BadLine(NamedTuple):
    """A line that is no request.

    Attributes:
        number: of the line, from 1.
        reason: what is wrong with it.
    """

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log.

    Attributes:
        number: of its line, from 1.
        offset: of its line in the file, in bytes (of the decompressed text).
        api: what it is a request to.
        body: its JSON.
        headers: as they were logged, names in lower case; most logs have none.
        response: the answer's JSON, if the line has it.
    """

    number: int
    offset: int
    api: Api
    body: Mapping[str, Any]
    headers: Headers = ()
    response: Mapping[str, Any] | None = None


class RequestLog:
    """An open log, which can be read more than once: from the beginning, or a line at a time.

    Attributes:
        size: bytes of the text.
        cut: why there may have been more of it; empty if that is all.
    """

    def __init__(self, stream: IO[bytes], size: int, cut: str = "") -> None:
        self._stream = stream
        self.size = size
        self.cut = cut

    def requests(self, on_bad: Callable[[BadLine], object] = lambda _: None) -> Iterator[LoggedRequest]:
        """All requests, in the order of the file. Memory: one line.

        Args:
            on_bad: told of each line that is no request.
        """
        self._stream.seek(0)
        offset = number = 0
        while line := self._stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            at, offset = offset, offset + len(line)
            if not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
                offset += _skip_line(self._stream)
                on_bad(BadLine(number, f"is longer than {MAX_LINE_BYTES >> 20} MiB"))
                continue
            if not line.strip():
                continue
            read = _read(line, number, at)
            if isinstance(read, BadLine):
                on_bad(read)
            else:
                yield read
        if self.cut:
            on_bad(BadLine(number + 1, f"and what follows it are missing: the gzip file is damaged ({self.cut})"))

    def at(self, offset: int, number: int) -> LoggedRequest:
        """The request of one line, by the place at which :meth:`requests` found it."""
        self._stream.seek(offset)
        read = _read(self._stream.readline(MAX_LINE_BYTES + 1), number, offset)
        if isinstance(read, BadLine):
            raise TraceError(f"line {number}", "has changed while the log was read", "analyse a copy of it")
        return read


@contextmanager
def open_log(path: str | PathLike[str]) -> Iterator[RequestLog]:
    """A log, open. One that is compressed is written out to a temporary file first.

    Raises:
        TraceError: it cannot be read, or is compressed and nothing of it can be.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            if raw.peek(2)[:2] != _GZIP_MAGIC:
                yield RequestLog(raw, path.stat().st_size)
                return
            with tempfile.TemporaryFile() as text:
                cut = _decompress(raw, text)
                if cut and not text.tell():
                    raise TraceError(f"{path}: gzip", cut, "compress the file again")
                yield RequestLog(text, text.tell(), cut)
    except OSError as error:
        raise TraceError(str(path), error.strerror or str(error), "give a file that can be read") from None


def _decompress(raw: IO[bytes], text: IO[bytes]) -> str:
    """Writes what can be decompressed; returns what is wrong with the rest, nothing if there is none."""
    with gzip.GzipFile(fileobj=raw) as compressed:
        try:
            while piece := compressed.read1(_PIECE):
                text.write(piece)
        except (gzip.BadGzipFile, EOFError, zlib_error) as error:
            return str(error)
    return ""


def _skip_line(stream: IO[bytes]) -> int:
    skipped = 0
    while piece := stream.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _read(line: bytes, number: int, offset: int) -> LoggedRequest | BadLine:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return BadLine(number, f"is not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return BadLine(number, f"is not JSON ({error.msg}, column {error.colno})")
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"is not usable JSON ({error})")
    if not isinstance(value, dict):
        return BadLine(number, "is not a JSON object")
    found = _body_of(value)
    if found is None:
        return BadLine(number, "holds no request (looked for messages, input or prompt, in it or in its body)")
    api, body = found
    response = _unpacked(value.get("response"))
    if isinstance(response, dict) and isinstance(held := _unpacked(response.get("body")), dict):
        response = held
    return LoggedRequest(
        number, offset, api, body, _headers(value.get("headers")), response if isinstance(response, dict) else None
    )


def _body_of(value: Mapping[str, Any], path: str = "") -> tuple[Api, Mapping[str, Any]] | None:
    """The body of a line and what it is a request to; ``path``: what stands around it says where it goes."""
    path = next((value[name] for name in _PATHS if isinstance(value.get(name), str)), path)
    for name in _HOLDERS:
        held = _unpacked(value.get(name))
        if isinstance(held, dict) and (found := _body_of(held, path)) is not None:
            return (MESSAGES, found[1]) if name == "params" else found
    api = _api_of(value, path)
    return None if api is None or api.read(value) is None else (api, value)


def _unpacked(value: Any) -> Any:
    """An object that was logged as a string of JSON; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] != "{":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _api_of(value: Mapping[str, Any], path: str) -> Api | None:
    """By the path of the line, else by the shape of the body."""
    ending = path.partition("?")[0].rstrip("/")
    for known, api in _ENDINGS:
        if ending.endswith(known):
            return api
    if "messages" in value:
        model = value.get("model")
        named = isinstance(model, str) and model.rpartition("/")[2].startswith("claude")
        return MESSAGES if "system" in value or "anthropic_version" in value or named else CHAT
    return RESPONSES if "input" in value else COMPLETIONS if "prompt" in value else None


def _headers(value: Any) -> Headers:
    pairs: Sequence[Any] = list(value.items()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(
        (pair[0].lower().encode("latin-1", "replace"), pair[1].encode("utf-8", "replace"))
        for pair in pairs
        if isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
    )
