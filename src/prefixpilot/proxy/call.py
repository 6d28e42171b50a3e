"""What a client asks for: the request as it came in, our own headers read; and how we refuse it."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import monotonic
from typing import Final

from prefixpilot.apis import CHAT, Api
from prefixpilot.core import DEFAULT_TENANT, RequestId, TenantId
from prefixpilot.errors import InvalidRequestError, PrefixPilotError
from prefixpilot.jsontext import UnreadableError
from prefixpilot.proxy.control.controller import Trial
from prefixpilot.proxy.settings import MODES, Mode
from prefixpilot.proxy.wire import headers as h

MAX_ID_CHARS: Final = 200
MAX_DISPLACEMENT: Final = "X-PrefixPilot-Max-Displacement"
EXPLAIN: Final = "explain"

_ANTHROPIC_KINDS: Final = {404: "not_found_error", 413: "request_too_large", 504: "timeout_error"}
_CREDENTIAL: Final = re.compile(
    rb"auth|api-key|apikey|api_key|subscription-key|functions-key|cookie|token|secret|credential|password|session|jwt"
    rb"|-user|user-id|user_id|email|identity|principal|client-cert|organization|tenant"
)
_NO_CREDENTIAL: Final = re.compile(rb"[cx]srf")
_KNOWN_BYTES: Final = 64
_OURS: Final = frozenset((h.MODE, h.CONVERSATION, h.REQUEST_ID, h.MAX_DISPLACEMENT, h.RECOGNISE, h.DEDUPE))
_INFLATED: Final = ("gzip", "x-gzip", "deflate")
_ANY_HEADER: Final = 47  # 32 + 15: a gzip or zlib header, whichever is there


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came in.

    Attributes:
        headers: raw, in order.
        body: the bytes as sent.
        api: the API of its path.
        received: monotonic seconds at which it was complete.
        tenant: whose it is.
        request_id: what the log calls it where the client has given it no id; empty: nothing.
        encoding: how the body is compressed, in lower case; ``identity``: it is not.
    """

    headers: h.RawHeaders
    body: bytes
    api: Api = CHAT
    received: float = field(default_factory=monotonic)
    tenant: TenantId = DEFAULT_TENANT
    request_id: str = ""
    encoding: str = field(init=False)

    def __post_init__(self) -> None:
        encoding = "identity"
        if h.get(self.headers, b"content-encoding") is not None:
            named = [value.decode("latin-1") for key, value in self.headers if key.lower() == b"content-encoding"]
            encoding = ",".join(named).strip().lower() or encoding
        object.__setattr__(self, "encoding", encoding)


@dataclass(frozen=True, slots=True)
class Options:
    """Our own headers of a request, and whose it is.

    Attributes:
        conversation: ``None`` if the request stands alone.
        credential: a hash of the headers that say who the client is.
        max_displacement: how far a block may be moved; ``None`` if the client does not say.
        tenant: see :class:`Call`.
        recognise: names of the formats that are looked for in a request without blocks; ``None`` if the client does not
            say.
        dedupe: what stands twice may become an annotation.
        explain: plan it as in mode on, and answer with the plan in the engine's place.
        chosen: the client named the mode.
        trial: its part in the comparison of treated requests with others; ``None`` if it has none.
    """

    mode: Mode
    conversation: str | None
    request_id: RequestId
    credential: str
    max_displacement: int | None = None
    tenant: TenantId = DEFAULT_TENANT
    recognise: tuple[str, ...] | None = None
    dedupe: bool = True
    explain: bool = False
    chosen: bool = False
    trial: Trial | None = None

    def within(self, max_displacement: int | None) -> Options:
        """With the proxy's own bound: a client can only ask for a tighter one."""
        asked = self.max_displacement
        if asked is None or max_displacement is None or asked <= max_displacement:
            return self
        return replace(self, max_displacement=max_displacement)

    @property
    def held_out(self) -> bool:
        """What is new in it goes as it came; what was sent before is sent again as it was."""
        return self.trial is not None and self.trial.arm == "held_out"

    @property
    def index_tenant(self) -> TenantId:
        """Whose part of the index: plans of shadow requests are never sent, and must not count for others."""
        return TenantId(f"{self.tenant}\0shadow") if self.mode == "shadow" else self.tenant


def read_options(call: Call, default_mode: Mode, new_id: Callable[[], str]) -> Options:
    """Read our headers.

    Raises:
        InvalidRequestError: a value that cannot be used; names the header.
    """
    ours = _ours(call.headers)
    mode = ours.get(h.MODE)
    explain = mode is not None and mode.strip().lower() == EXPLAIN
    named = None if mode is None else "on" if explain else mode.strip().lower()
    known = default_mode if named is None else next((m for m in MODES if m == named), None)
    if known is None:
        raise InvalidRequestError("X-PrefixPilot-Mode", f"is {mode!r}", f"use one of: {', '.join((*MODES, EXPLAIN))}")
    conversation = ours.get(h.CONVERSATION)
    if conversation is not None:
        if not conversation.strip():
            raise InvalidRequestError("X-PrefixPilot-Conversation", "is empty", "give an id, or leave the header out")
        _check_length("X-PrefixPilot-Conversation", conversation)
    request_id = ours.get(h.REQUEST_ID, "").strip() or call.request_id or new_id()
    limit = ours.get(h.MAX_DISPLACEMENT)
    if limit is not None and not re.fullmatch(r"\s*[0-9]{1,9}\s*", limit):
        raise InvalidRequestError(MAX_DISPLACEMENT, f"is {limit!r}", "give an integer of 0 or more, or leave it out")
    credential = credential_of(call.headers)
    return Options(
        known,
        conversation,
        RequestId(request_id),
        credential,
        None if limit is None else int(limit),
        call.tenant,
        _recognise(ours.get(h.RECOGNISE)),
        _dedupe(ours.get(h.DEDUPE)),
        explain,
        named is not None,
    )


def wants_plan(headers: h.RawHeaders) -> bool:
    """Whether the client asks for the plan in the place of an answer (``X-PrefixPilot-Mode: explain``)."""
    return (h.get(headers, h.MODE) or "").strip().lower() == EXPLAIN


def _ours(headers: h.RawHeaders) -> dict[bytes, str]:
    """The first value of each of our own headers, in latin-1."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        name = name.lower()
        if name in _OURS and name not in found:
            found[name] = value.decode("latin-1")
    return found


def _recognise(value: str | None) -> tuple[str, ...] | None:
    """``off``, ``all``, or names with commas between them."""
    if value is None:
        return None
    names = tuple(name.strip().lower() for name in value.split(","))
    if not all(re.fullmatch(r"[a-z0-9_.-]+", name) for name in names):
        raise InvalidRequestError("X-PrefixPilot-Recognise", f"is {value!r}", "use off, all, or names of formats")
    return () if names == ("off",) else names


def _dedupe(value: str | None) -> bool:
    if value is not None and value.strip().lower() not in ("on", "off"):
        raise InvalidRequestError("X-PrefixPilot-Dedupe", f"is {value!r}", "use on or off")
    return value is None or value.strip().lower() == "on"


def check_request_id(options: Options) -> None:
    """Raise ``InvalidRequestError`` if the request's id is too long to be kept. Only what we plan has to have one."""
    _check_length("X-Request-Id", options.request_id)


def _check_length(header: str, value: str) -> None:
    if len(value) > MAX_ID_CHARS:
        raise InvalidRequestError(
            header, f"has {len(value)} characters", f"use at most {MAX_ID_CHARS}, or leave the header out"
        )


def credential_of(headers: h.RawHeaders) -> str:
    """A hash of every header that says who the client is; equal for all clients that send none. Not reversible."""
    hashed = hashlib.blake2b(digest_size=16)
    for name, value in sorted((name.lower(), value) for name, value in headers if _tells_clients_apart(name)):
        for part in (name, value):
            hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


def is_credential(name: bytes) -> bool:
    """Whether a header, by its name in lower case, tells clients apart. In doubt it does: too much is forgotten rather
    than shown to another. A token against forged requests is not one: it changes with each request."""
    return _CREDENTIAL.search(name) is not None and _NO_CREDENTIAL.search(name) is None


def _tells_clients_apart(name: bytes) -> bool:
    """:func:`is_credential` of a name as it was sent. The same few names come again and again."""
    return _known_name(name) if len(name) <= _KNOWN_BYTES else is_credential(name.lower())


@lru_cache(maxsize=1024)
def _known_name(name: bytes) -> bool:
    return is_credential(name.lower())


def may_carry_blocks(call: Call, field_name: str) -> bool:
    """Whether the body may have a key of that name: :func:`names_field`, or the body is compressed. Never false of a
    body that has it. O(bytes)."""
    return is_encoded(call) or names_field(call.body, field_name)


def names_field(data: bytes, field_name: str) -> bool:
    """Whether the name, which is ASCII, stands in JSON text, or in a part of one, plainly or with escapes, in UTF-8, 16
    or 32."""
    text = data.replace(b"\0", b"") if b"\0" in data else data
    if field_name.encode() in text:
        return True
    return b"\\" in text and b"\\u00" in text and _with_escapes(field_name).search(text) is not None


@lru_cache
def _with_escapes(name: str) -> re.Pattern[bytes]:
    """Matches a JSON string of that name, each character plain or as ``\\uXXXX``."""
    each = (f"(?:{re.escape(c)}|\\\\u(?i:{ord(c):04x}))" for c in name)
    return re.compile("".join(each).encode())


def is_encoded(call: Call) -> bool:
    """Whether the body came compressed."""
    return call.encoding != "identity"


def unfold(call: Call, max_bytes: int) -> bytes:
    """The body as it was before it was compressed by gzip or deflate. O(bytes).

    Raises:
        UnreadableError: another coding, broken, or more than ``max_bytes``.
    """
    encoding = call.encoding
    if encoding == "identity":
        return call.body
    if encoding not in _INFLATED:
        raise UnreadableError(f"is compressed by {encoding!r}, which is not read here")
    whole, rest = bytearray(), call.body
    while rest:  # a gzip file may have several members
        unfolding = zlib.decompressobj(_ANY_HEADER)
        try:
            whole += unfolding.decompress(rest, max_bytes + 1 - len(whole))
        except zlib.error as error:
            raise UnreadableError(f"is not what its Content-Encoding says ({error})") from None
        if len(whole) > max_bytes:
            raise UnreadableError(f"unfolds to more than {max_bytes} bytes")
        if not unfolding.eof:
            raise UnreadableError("is cut: its compressed data has no end")
        rest = unfolding.unused_data
    return bytes(whole)


class RefusedError(PrefixPilotError):
    """An answer of ours in the place of the engine's, in the API's own error shape; ``headers`` go with it."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str,
        param: str | None = None,
        code: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers: h.RawHeaders = list(headers)

    def body(self, api: str = "chat") -> bytes:
        """``{"error": {"message", "type", "param", "code"}}``, or as Anthropic writes it for ``messages``."""
        if api == "messages":
            kind = _ANTHROPIC_KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            error = {"type": "error", "error": {"type": kind, "message": self.message}}
            return json.dumps(error).encode("ascii")
        return json.dumps(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        ).encode("ascii")

    @classmethod
    def of(cls, error: InvalidRequestError) -> RefusedError:
        """A 400 for a client's mistake."""
        return cls(400, str(error), "invalid_request_error", error.field, "invalid_value")
