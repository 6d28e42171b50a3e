"""Logs of requests: what is read as one, what is told, and that nothing stops the reading."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.errors import TraceError
from prefixpilot.workloads.request_log import MAX_LINE_BYTES, BadLine, LoggedRequest, open_log

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
ANSWER = {"choices": [{"message": {"content": "Hi"}}]}


def read(path: Path, *lines: Any) -> tuple[list[LoggedRequest], list[BadLine]]:
    text = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(text) + b"\n")
    bad: list[BadLine] = []
    with open_log(path) as log:
        return list(log.requests(bad.append)), bad


@pytest.mark.parametrize(
    ("line", "api", "body"),
    [
        (CHAT, "chat", CHAT),
        ({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}, "chat", CHAT),
        ({"custom_id": "a", "params": CHAT}, "messages", CHAT),
        ({"request": CHAT, "response": ANSWER}, "chat", CHAT),
        ({"path": "https://x/v1/messages?beta=true", "request": CHAT}, "messages", CHAT),
        ({"request": {"body": CHAT, "url": "/v1/messages"}}, "messages", CHAT),
        ({"model": "claude-x", "messages": []}, "messages", {"model": "claude-x", "messages": []}),
        ({"messages": [], "system": "Be brief"}, "messages", {"messages": [], "system": "Be brief"}),
        ({"input": "Hello"}, "responses", {"input": "Hello"}),
        ({"prompt": "Hello"}, "completions", {"prompt": "Hello"}),
    ],
)
def test_what_is_a_request(tmp_path: Path, line: Any, api: str, body: Any) -> None:
    (found,), bad = read(tmp_path / "log.jsonl", line)
    assert not bad
    assert found.api.name == api
    assert found.number == 1
    assert found.body == body


def test_lines_that_hold_no_request_are_told_and_reading_goes_on(tmp_path: Path) -> None:
    lines = [b"{", b"[1]", b"\xff", b"", {"level": "info"}, {"body": {"messages": "no"}}, CHAT]
    found, bad = read(tmp_path / "log.jsonl", *lines)
    assert [request.number for request in found] == [7]
    assert [line.number for line in bad] == [1, 2, 3, 5, 6]
    assert bad[0].reason.startswith("is not JSON")
    assert bad[1].reason == "is not a JSON object"
    assert bad[2].reason == "is not UTF-8 (byte 0)"
    assert bad[3].reason.startswith("holds no request")


def test_a_line_that_is_too_long_is_skipped_whole(tmp_path: Path) -> None:
    long = b'{"messages": [' + b" " * MAX_LINE_BYTES + b"]}"
    found, bad = read(tmp_path / "log.jsonl", CHAT, long, CHAT)
    assert [request.number for request in found] == [1, 3]
    assert bad == [BadLine(2, "is longer than 64 MiB")]
    with open_log(tmp_path / "log.jsonl") as log:
        assert log.at(found[1].offset, 3).body == CHAT


def test_headers_and_answers_are_kept(tmp_path: Path) -> None:
    line = {
        "body": CHAT,
        "headers": {"X-PrefixPilot-Conversation": "c1", "n": 3},
        "response": {"status_code": 200, "body": ANSWER},
    }
    (found,), _ = read(tmp_path / "log.jsonl", line)
    assert found.headers == ((b"x-prefixpilot-conversation", b"c1"),)
    assert found.response == ANSWER


def test_a_compressed_log_is_the_same(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    requests, _ = read(plain, CHAT, {"custom_id": "x", "params": CHAT})
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with open_log(packed) as log:
        assert list(log.requests()) == requests
        assert log.at(requests[1].offset, 2) == requests[1]
        assert log.size == plain.stat().st_size


@pytest.mark.parametrize("damage", ["cut", "checksum", "middle"])
def test_a_compressed_log_that_is_damaged_is_read_as_far_as_it_goes(tmp_path: Path, damage: str) -> None:
    lines = [json.dumps({**CHAT, "user": f"{i}x{i * i}"}) + "\n" for i in range(4000)]
    packed = bytearray(gzip.compress("".join(lines).encode(), mtime=0))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[-6 if damage == "checksum" else len(packed) // 2] ^= 0xFF
    path, bad = tmp_path / "b.jsonl.gz", list[BadLine]()
    path.write_bytes(packed)
    with open_log(path) as log:
        found = [request.body["user"] for request in log.requests(bad.append)]
    expected = [f"{i}x{i * i}" for i in range(4000)]
    assert "the gzip file is damaged" in bad[-1].reason
    if damage == "checksum":
        assert found == expected and bad[-1].number == 4001
    else:
        assert 1000 < len(found) < 4000 and found[:1000] == expected[:1000]


@pytest.mark.parametrize("holder", ["body", "request", "params", "request_body"])
def test_a_body_may_be_a_string_of_json(tmp_path: Path, holder: str) -> None:
    line = {"url": "/v1/chat/completions", holder: json.dumps(CHAT), "response": json.dumps({"body": ANSWER})}
    requests, bad = read(
        tmp_path / "a.jsonl", line, {**line, holder: '{"messages'}, {**line, holder: "POST / HTTP/1.1"}
    )
    assert [(request.body, request.response) for request in requests] == [(CHAT, ANSWER)]
    assert [each.number for each in bad] == [2, 3]


def test_what_cannot_be_read_names_file_and_remedy(tmp_path: Path) -> None:
    told = pytest.raises(TraceError, match="nowhere: No such file or directory; give a file that can be read")
    with told, open_log(tmp_path / "nowhere"):
        pass
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"x" * 1000)[:10])
    with pytest.raises(TraceError, match="compress the file again"), open_log(broken):
        pass


def test_a_log_that_changes_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    read(path, CHAT)
    with open_log(path) as log, pytest.raises(TraceError, match="line 1: has changed while the log was read"):
        log.at(3, 1)
