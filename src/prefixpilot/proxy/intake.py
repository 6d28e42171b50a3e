"""Bodies that come in: which requests have to be read before they are passed on, and what is looked for in them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Any, Final

from prefixpilot.apis import APIS, CHAT, COMPLETIONS, MESSAGES, Api
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import JsonText, NoObjectError, Pointer, UnreadableError, written
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import BlocksRequest, misplaced
from prefixpilot.proxy.call import Call, RefusedError, is_encoded, may_carry_blocks, names_field, unfold
from prefixpilot.proxy.steps import Parse
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.exchange import BodyTooLargeError
from prefixpilot.proxy.wire.targets import plain_path

LARGE_BYTES: Final = 1 << 20
"""A longer body is read and planned off the event loop, and so is a compressed one, whatever its length."""

_BESIDE: Final = (b"/count_tokens", b"/input_tokens", b"/compact", b"/render", b"/batch")
"""Behind an API's path: its request is counted (Anthropic, OpenAI), compacted (OpenAI), rendered or sent in a batch
(vLLM). Without the blocks each would be of another prompt."""

_NATIVE: Final = (
    *(b"/completion", b"/infill", b"/apply-template", b"/tokenize"),
    *(b"/generate", b"/vertex_generate", b"/generate_stream", b"/chat_tokenize", b"/invocations"),
    *(b"/api/chat", b"/api/generate"),
)
"""Ends of the engines' own paths (llama.cpp, vLLM, SGLang, TGI, SageMaker's, Ollama) on which nothing is planned."""

_BATCHES: Final = b"/messages/batches"
"""End of the path to which a list of requests is sent at once (Anthropic)."""

_LONGEST_KEY: Final = len(FIELD) * len(r"\u0063") * 4
"""Bytes of the key at most: each character written as an escape, in UTF-32."""


def is_large(call: Call) -> bool:
    """Whether to read and to plan a request takes long enough to hold up others."""
    return len(call.body) > LARGE_BYTES or is_encoded(call)


def api_near(path: bytes) -> Api | None:
    """The API that a client may mean: its path, written in another way (:func:`plain_path`), behind a prefix, or what
    stands beside it (a count of tokens); of an engine's own paths, Completions.

    The messages of OpenAI's threads are none.
    """
    plain = plain_path(path)
    if b"/threads/" in plain:
        return None
    for end in _BESIDE:
        plain = plain.removesuffix(end)
    near = (api for api in APIS for ending in api.paths if plain.endswith(ending.removeprefix(b"/v1")))
    return next(near, COMPLETIONS if plain.endswith(_NATIVE) else None)


def api_of_batch(path: bytes) -> Api | None:
    """The API of the requests in a batch that is sent to that path."""
    return MESSAGES if plain_path(path).endswith(_BATCHES) else None


def check_not_misplaced(call: Call, max_bytes: int) -> None:
    """Refuse blocks sent to a path on which nothing would take them: the engine would answer without them.

    Args:
        call: its API is the one that is near, or that of the requests in a batch.

    Raises:
        RefusedError: a 400 that names the path to use; also for a body that may hold them and cannot be read.
    """
    if not may_carry_blocks(call, FIELD):
        return
    try:
        body = unfold(call, max_bytes)
        if not names_field(body, FIELD):
            return
        document = JsonText.read(body).value
    except NoObjectError:
        return
    except UnreadableError as error:
        message = f"{FIELD}: may stand in this body, which {error}, and is not read on this path"
        raise _misplaced(message, call.api) from None
    for at, body_of in _bodies(document):
        inside = (FIELD,) if body_of.get(FIELD) else misplaced(body_of)
        if inside is not None:
            field = written((*at, *inside))
            raise _misplaced(f"{field}: is not read on this path", call.api, field)


def _bodies(document: dict[str, Any]) -> Iterator[tuple[Pointer, dict[str, Any]]]:
    """What may be meant as a body, and where it stands: all of it, and in a batch each request and its ``params``."""
    yield (), document
    requests = document.get("requests")
    for i, request in enumerate(requests if isinstance(requests, list) else ()):
        if isinstance(request, dict):
            yield ("requests", i), request
            if isinstance(params := request.get("params"), dict):
                yield ("requests", i, "params"), params


def _misplaced(message: str, api: Api, field: str = FIELD) -> RefusedError:
    remedy = f"send the request to {api.paths[0].decode()}"
    return RefusedError(400, f"{message}; {remedy}", "invalid_request_error", field, "wrong_path")


class LongBody:
    """A body over the bound, passed on as it comes for as long as nothing in it is for us.

    Attributes:
        refused: it came to hold ``context_blocks``; it was not passed on from there.
    """

    def __init__(self, head: bytes, rest: AsyncIterable[bytes]) -> None:
        self._head = head
        self._rest = rest
        self.refused = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._head
        seen = self._head[-_LONGEST_KEY:]
        async for data in self._rest:
            seen += data
            if names_field(seen, FIELD):
                self.refused = True
                raise BodyTooLargeError
            seen = seen[-_LONGEST_KEY:]
            yield data


def long_body(headers: h.RawHeaders, head: bytes, rest: AsyncIterable[bytes]) -> LongBody:
    """A body of which ``head`` has been read.

    Raises:
        BodyTooLargeError: we would have to read all of it: it may hold blocks, or earlier turns may be restored.
    """
    restores = h.get(headers, h.CONVERSATION) is not None
    if restores or is_encoded(Call(headers, b"")) or names_field(head, FIELD):
        raise BodyTooLargeError
    return LongBody(head, rest)


def with_block_bound(parse: Parse, max_request_blocks: int) -> Parse:
    """``parse``, with a bound on the number of blocks, looked at before any of them is."""

    def parse_within(body: Mapping[str, Any], api: Api = CHAT, *, history: bool = False) -> BlocksRequest | None:
        given = body.get(FIELD)
        if isinstance(given, list) and len(given) > max_request_blocks:
            reason = (
                f"holds {len(given)} blocks, and the proxy takes {max_request_blocks} (its setting max_request_blocks)"
            )
            raise InvalidRequestError(
                FIELD, reason, "send fewer, or start the proxy with a higher --max-request-blocks"
            )
        return parse(body, api, history=history)

    return parse_within
