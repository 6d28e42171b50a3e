"""Empty lines before a request are none of it: some clients send one behind each body (RFC 9112, 2.2)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.proxy.wire.client import ClientProtocol

from .test_plain import Server, check_same, plain, settled, the_deadline

FIRST, SECOND = plain(b"/x", b"hello"), plain(b"/x?r", b"again")
CLOSING = plain(b"/x", b"hello", b"POST", b"Connection: close")


@given(
    st.tuples(*[st.sampled_from([0, 1, 1, 2, 300])] * 3), st.lists(st.integers(0, 400), max_size=3), st.integers(1, 3)
)
def test_requests_with_empty_lines_around_them(lines: tuple[int, ...], cuts: list[int], together: int) -> None:
    before, between, behind = (b"\r\n" * count for count in lines)
    data = before + FIRST + between + SECOND + behind
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    came = check_same([data[start:end] for start, end in pairwise(ends)], together)
    assert [(request[1], request[2]) for request in came.seen] == [(b"/x", b"hello"), (b"/x?r", b"again")]
    assert (came.refused, came.closed) == ([], False)
    assert came.written.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("line", [b"\r", b"\r\r\n", b"\r\n\r", b" \r\n"])
def test_what_is_no_empty_line_is_refused(line: bytes) -> None:
    came = check_same([FIRST, line + SECOND])
    assert [request[1] for request in came.seen] == [b"/x"]
    assert [refusal.status for refusal in came.refused] == [400]


@pytest.mark.parametrize("pieces", [[CLOSING + b"\r\n"], [CLOSING, b"\r\n"], [CLOSING, SECOND]])
def test_nothing_that_follows_the_last_request_spoils_its_answer(pieces: list[bytes]) -> None:
    came = check_same(pieces, together=2)
    assert [request[1] for request in came.seen] == [b"/x"]
    assert (came.refused, came.closed) == ([], True)
    assert came.written.endswith(b"okok")


@pytest.mark.parametrize("plain_first", [True, False])
def test_behind_an_empty_line_a_request_is_waited_for_within_the_bound(plain_first: bool) -> None:
    async def case() -> None:
        server = Server(plain=plain_first)
        await server.send([FIRST, b"\r\n"])
        assert isinstance(server.protocol, ClientProtocol)
        deadline = the_deadline(server)
        await server.send([b"\r\n"])
        assert the_deadline(server) == deadline
        server.protocol._give_up()
        await settled()
        assert (server.transport.closed, server.app.refused) == (True, [])
        await server.lose()

    asyncio.run(case())


@pytest.mark.parametrize("rest", [[b"0123456789"], [b"01", b"23456789"], [b"01"], [b"0", b"1"]])
@pytest.mark.parametrize("plain_first", [True, False])
def test_the_rest_of_a_body_that_was_answered_leaves_no_connection_without_a_bound(
    plain_first: bool, rest: list[bytes]
) -> None:
    async def case() -> None:
        server = Server(plain=plain_first)
        await server.send([plain(b"/early", b"abc" + b"0123456789")[: -len(b"0123456789")]])
        assert server.transport.writes and not server.transport.closed
        await server.send(rest)
        protocol = server.transport.protocol
        timers = [each for each in (protocol._head_timer, protocol.timeout_keep_alive_task) if each is not None]
        assert any(not timer.cancelled() for timer in timers)
        for timer in timers:
            timer._run()
        await settled()
        assert (server.transport.closed, server.app.refused) == (True, [])
        await server.lose()

    asyncio.run(case())
