"""Bodies and headers that are hard to read: blocks are placed or refused, never lost; nothing else is touched."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from prefixpilot.proxy.call import Call, RefusedError, credential_of, is_credential
from prefixpilot.proxy.forward import Forward

from .support import Desk, InjectedError, assistant, chat, user

HEAD = b'{"model":"m","messages":[{"role":"user","content":"Q?"}],'
BLOCKS = b'"context_blocks":["A"]'
ESCAPED = rb'"c\u006Fntext\u005fblocks":["A"]'
PLACED = b'{"model":"m","messages":[{"role":"user","content":"[Doc 1]\\nA\\n\\nQ?"}]'


def send(body: bytes, headers: Iterable[tuple[bytes, bytes]] = (), desk: Desk | None = None) -> Forward:
    return (desk or Desk()).app.pipeline.prepare(Call(list(headers), body))


def encoded(name: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"Content-Encoding", name)]


@pytest.mark.parametrize("key", [BLOCKS, ESCAPED])
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (b',"x":NaN}', "NaN"),
        (b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b',"x":"\xff"}', "not UTF-8"),
        (b',"context_blocks":["B"]}', "context_blocks twice"),
        (b',"messages":[{"role":"user","content":"Other?"}]}', "messages twice"),
        (b",}", "not JSON"),
    ],
)
def test_a_body_that_we_cannot_read_and_that_may_hold_blocks_is_refused(key: bytes, rest: bytes, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        send(HEAD + key + rest)
    assert (caught.value.status, caught.value.param, caught.value.kind) == (400, "body", "invalid_request_error")
    assert "send one JSON object in UTF-8" in caught.value.message


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-32"])
def test_other_codings_of_text_are_refused_if_they_hold_the_key(coding: str) -> None:
    with pytest.raises(RefusedError, match="UTF-8"):
        send((HEAD + BLOCKS + b"}").decode().encode(coding))
    other = json.dumps(chat([user("Q?")])).encode(coding)
    assert send(other).body == other


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (b"zstd", b"\x28\xb5\x2f\xfd"),
        (b"br", b"?"),
        (b"gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0)),
        (b"gzip", HEAD + BLOCKS + b"}"),
        (b"gzip", gzip.compress(HEAD + BLOCKS + b"}", mtime=0)[:-9]),
        (b"deflate", zlib.compress(b" " * (70 << 20))),
        (b"gzip", gzip.compress(b'{"x":NaN}', mtime=0)),
    ],
)
def test_what_we_cannot_unfold_is_refused(name: bytes, body: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        send(body, encoded(name))
    assert (caught.value.status, caught.value.param) == (400, "body")


def test_a_gzip_file_of_two_members_is_read() -> None:
    whole = HEAD + BLOCKS + b"}"
    assert send(gzip.compress(whole[:20]) + gzip.compress(whole[20:]), encoded(b"gzip")).body == PLACED + b"}"
    plain = gzip.compress(HEAD + b'"x":1}')
    assert send(plain, encoded(b"GZIP")).body == plain


@pytest.mark.parametrize(
    "body", [b"{", b'{"x":NaN}', b'{"x":"\xff"}', b"[" * 9000, b"", b'["context_blocks"]', b'{"x":1,"x":2}']
)
@pytest.mark.parametrize("conversation", [(), ((b"x-prefixpilot-conversation", b"c"),)])
def test_a_body_that_cannot_hold_blocks_passes(body: bytes, conversation: Any) -> None:
    sent = send(body, conversation)
    assert (sent.body, sent.outcome) == (body, "passthrough")


def test_in_a_conversation_with_documents_an_unreadable_body_is_refused() -> None:
    desk = Desk()
    desk.ask(chat([user("Q?")], ["A"]), "c")
    later = b'{"x":NaN,"messages":[{"role":"user","content":"Q?"},{"role":"user","content":"R?"}]}'
    with pytest.raises(RefusedError, match="earlier turns"):
        send(later, [(b"x-prefixpilot-conversation", b"c")], desk)
    assert send(later, [(b"x-prefixpilot-conversation", b"d")], desk).body == later


def test_an_escaped_key_and_numbers_as_the_client_wrote_them() -> None:
    numbers = b',"a":0.10000000000000000555,"b":1E2,"c":-0,"t":1e400,"s":' + b"9" * 5000 + b',"seed":1,"seed":2}'
    assert send(HEAD + ESCAPED + numbers).body == PLACED + numbers


@pytest.mark.parametrize("rest", [b',"t":1e400,"c":-0}', b',"s":' + b"9" * 5000 + b"}"])
def test_the_fallback_keeps_numbers_too(rest: bytes) -> None:
    def fail(*args: Any) -> Any:
        raise InjectedError("injected")

    body = send(HEAD + BLOCKS + rest, desk=Desk(place=fail)).body
    assert body.replace(b" ", b"") == PLACED.replace(b" ", b"") + rest
    packed = gzip.compress(HEAD + BLOCKS + rest)
    assert send(packed, encoded(b"gzip"), Desk(place=fail)).body == body
    with pytest.raises(RefusedError) as caught:
        send(HEAD + BLOCKS + b',"seed":1,"seed":2}', desk=Desk(place=fail))
    assert caught.value.status == 500


def test_only_what_is_planned_needs_a_usable_request_id() -> None:
    long = [(b"x-request-id", b"r" * 201)]
    assert send(HEAD + b'"x":1}', long).body == HEAD + b'"x":1}'
    mentioned = HEAD.replace(b"Q?", b"What are context_blocks?") + b'"x":1}'
    assert send(mentioned, long).body == mentioned
    with pytest.raises(RefusedError, match="X-Request-Id: has 201 characters"):
        send(HEAD + BLOCKS + b"}", long)


def test_a_conversation_id_has_a_bound() -> None:
    assert Desk().ask(chat([user("Q?")], ["A"]), "c" * 200).plan["recorded"]
    with pytest.raises(RefusedError, match="X-PrefixPilot-Conversation: has 201 characters"):
        Desk().ask(chat([user("Q?")], ["A"]), "c" * 201)


CREDENTIALS = (
    b"authorization proxy-authorization cookie x-api-key api-key x-goog-api-key x-auth-token x-access-token "
    b"ocp-apim-subscription-key x-litellm-api-key x-functions-key x-amz-security-token x-forwarded-user "
    b"x-forwarded-email remote-user x-user-id x-session-id openai-organization cf-access-jwt-assertion"
).split()
NO_CREDENTIALS = (
    b"accept accept-encoding user-agent content-type x-request-id traceparent x-stainless-retry-count date host "
    b"idempotency-key x-csrf-token x-prefixpilot-conversation x-forwarded-for referer origin"
).split()


@pytest.mark.parametrize("name", CREDENTIALS)
def test_every_kind_of_credential_tells_users_apart(name: bytes) -> None:
    assert is_credential(name)
    desk = Desk()
    shared = (b"x-prefixpilot-conversation", b"c")
    for block, key in (("A", b"one"), ("B", b"two")):
        body = json.dumps(chat([user("Q?")], [block])).encode()
        forward = desk.app.pipeline.prepare(Call([(name.title(), key), shared], body))
        answer = desk.app.pipeline.observe(forward, 200, "application/json", "")
        answer.feed(b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}')
        answer.finish()
    later = json.dumps(chat([user("Q?"), assistant(), user("R?")])).encode()
    for placed, key in ((b"Doc 1]\\nA", b"one"), (b"Doc 1]\\nB", b"two")):
        assert placed in desk.app.pipeline.prepare(Call([shared, (name, key)], later)).body
    assert desk.app.pipeline.prepare(Call([shared, (name, b"three")], later)).body == later


def test_headers_that_change_from_request_to_request_are_no_credentials() -> None:
    assert [name for name in NO_CREDENTIALS if is_credential(name)] == []
    one = [(b"Cookie", b"a=1"), (b"Authorization", b"k"), (b"Date", b"1")]
    assert credential_of(one) == credential_of([(b"authorization", b"k"), (b"cookie", b"a=1")])
    assert len({credential_of(one), credential_of([*one[:2][::-1], (b"cookie", b"")]), credential_of([])}) == 3
