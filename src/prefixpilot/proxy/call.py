"""What a client asks for: the chat request as it came in, our own headers read; and how we refuse it."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from prefixpilot.core import RequestId
from prefixpilot.errors import InvalidRequestError, PrefixPilotError
from prefixpilot.proxy import headers as h
from prefixpilot.proxy.settings import MODES, Mode

MAX_ID_CHARS: Final = 200
MAX_DISPLACEMENT: Final = "X-PrefixPilot-Max-Displacement"


class NotJsonError(ValueError):
    """A body that we cannot read, and so leave to the engine."""


@dataclass(frozen=True, slots=True)
class Call:
    """A chat request as it came in.

    Attributes:
        headers: raw, in order.
        body: the bytes as sent.
        received: monotonic seconds at which it was complete.
    """

    headers: h.RawHeaders
    body: bytes
    received: float = field(default_factory=monotonic)


@dataclass(frozen=True, slots=True)
class Options:
    """Our own headers of a chat request, and whose it is.

    Attributes:
        conversation: ``None`` if the request stands alone.
        credential: a hash of the headers that authenticate the client.
        max_displacement: how far a block may be moved; ``None`` if the client does not say.
    """

    mode: Mode
    conversation: str | None
    request_id: RequestId
    credential: str
    max_displacement: int | None = None


def read_options(call: Call, default_mode: Mode, new_id: Callable[[], str]) -> Options:
    """Read our headers.

    Raises:
        InvalidRequestError: a value that cannot be used; names the header.
    """
    mode = h.get(call.headers, h.MODE)
    known = default_mode if mode is None else next((m for m in MODES if m == mode.strip().lower()), None)
    if known is None:
        raise InvalidRequestError("X-PrefixPilot-Mode", f"is {mode!r}", f"use one of: {', '.join(MODES)}")
    conversation = h.get(call.headers, h.CONVERSATION)
    if conversation is not None and not conversation.strip():
        raise InvalidRequestError("X-PrefixPilot-Conversation", "is empty", "give an id, or leave the header out")
    request_id = (h.get(call.headers, h.REQUEST_ID) or "").strip() or new_id()
    if len(request_id) > MAX_ID_CHARS:
        raise InvalidRequestError(
            "X-Request-Id", f"has {len(request_id)} characters", f"use at most {MAX_ID_CHARS}, or leave the header out"
        )
    limit = h.get(call.headers, h.MAX_DISPLACEMENT)
    if limit is not None and not (limit.strip().isascii() and limit.strip().isdigit()):
        raise InvalidRequestError(MAX_DISPLACEMENT, f"is {limit!r}", "give an integer of 0 or more, or leave it out")
    return Options(
        known, conversation, RequestId(request_id), _credential(call.headers), None if limit is None else int(limit)
    )


def _credential(headers: h.RawHeaders) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name, value in headers:
        if name.lower() in h.CREDENTIALS:
            for part in (name.lower(), value):
                hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


def read_body(call: Call, max_bytes: int) -> Mapping[str, Any]:
    """The body as a JSON object, unfolded if it came compressed by gzip or deflate.

    Raises:
        NotJsonError: it is none, or none that we can read.
    """
    try:
        document = json.loads(_unfold(call, max_bytes), parse_constant=_refuse)
    except (ValueError, RecursionError, zlib.error) as error:
        raise NotJsonError(str(error)) from error
    if not isinstance(document, dict):
        raise NotJsonError("not an object")
    return document


def is_encoded(call: Call) -> bool:
    """Whether the body came compressed."""
    return (h.get(call.headers, b"content-encoding") or "identity").strip().lower() != "identity"


def _unfold(call: Call, max_bytes: int) -> bytes:
    if not is_encoded(call):
        return call.body
    unfolding = zlib.decompressobj(47)  # 32 + 15: a gzip or zlib header, whichever is there
    data = unfolding.decompress(call.body, max_bytes)
    if not unfolding.eof:
        raise NotJsonError("is cut, or unfolds to more than a body may have")
    return data


def _refuse(constant: str) -> float:
    raise NotJsonError(f"{constant} is no JSON")


def write_body(body: Mapping[str, Any]) -> bytes:
    """The bytes to send: ASCII, so that every string that JSON can carry can be sent."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")


class RefusedError(PrefixPilotError):
    """An answer of ours in the place of the engine's, in the API's own error shape."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """``{"error": {"message", "type", "param", "code"}}``."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode("ascii")

    @classmethod
    def of(cls, error: InvalidRequestError) -> RefusedError:
        """A 400 for a client's mistake."""
        return cls(400, str(error), "invalid_request_error", error.field, "invalid_value")
