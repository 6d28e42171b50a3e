"""The two trace formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.errors import TraceError
from prefixpilot.workloads import read_workload

HEADER = {"trace": "tiny", "tokens": [10, 20, 30]}
R0 = {"request_id": "r0", "session_id": "s", "turn": 0, "blocks": [2, 0]}
R1 = {"request_id": "r1", "session_id": "s", "turn": 1, "blocks": [1]}
LINE = b'{"trace": "t", "tokens": []}\n'


def write(path: Path, *lines: Any) -> Path:
    path.write_bytes(b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines))
    return path


def folder(path: Path, blocks: list[Any], requests: list[Any]) -> Path:
    path.mkdir()
    write(path / "blocks.jsonl", *blocks)
    write(path / "requests.jsonl", *requests)
    return path


def test_an_ids_file(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path / "t.jsonl", HEADER, R0, R1))
    assert workload.name == "tiny"
    assert not workload.is_batch
    first = workload.requests[0]
    assert (first.request.request_id, first.session_id, first.turn) == ("r0", "s", 0)
    assert [(b.id, b.tokens) for b in first.request.blocks] == [(2, 30), (0, 10)]
    assert first.request.conversation_id is None
    assert first.name_of(1) == 0


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.jsonl", HEADER, R0)
    packed = tmp_path / "u.jsonl"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_workload(str(packed)).requests[0].request == read_workload(plain).requests[0].request


def test_a_last_line_without_newline_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, R0, R1)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(read_workload(path).requests) == 2


def test_a_session_defaults_to_the_request(tmp_path: Path) -> None:
    entry = read_workload(write(tmp_path / "t.jsonl", HEADER, {"request_id": "r0", "blocks": []})).requests[0]
    assert (entry.session_id, entry.turn, entry.request.blocks) == ("r0", 0, ())


def test_a_text_folder(tmp_path: Path) -> None:
    blocks = [{"block_id": "a", "text": "one\u2028two", "tokens": 3}, {"block_id": 7, "text": "three"}]
    path = folder(tmp_path / "talk", blocks, [{**R0, "blocks": [7, "a"], "query": "?", "answer": "!"}])
    workload = read_workload(path)
    assert workload.name == "talk"
    assert [(b.id, b.text, b.tokens) for b in workload.requests[0].request.blocks] == [
        (7, "three", None),
        ("a", "one\u2028two", 3),
    ]


def test_a_text_folder_may_be_compressed(tmp_path: Path) -> None:
    path = folder(tmp_path / "talk", [{"block_id": "a", "text": "x"}], [{**R0, "blocks": ["a"]}])
    for name in ("blocks.jsonl", "requests.jsonl"):
        (path / f"{name}.gz").write_bytes(gzip.compress((path / name).read_bytes()))
        (path / name).unlink()
    assert len(read_workload(path).requests) == 1


def test_conversations_keep_the_sessions(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path / "t.jsonl", HEADER, R0, R1)).as_conversations()
    assert [entry.request.conversation_id for entry in workload.requests] == ["s", "s"]


def test_turns_out_of_order_are_no_conversation(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path / "t.jsonl", HEADER, R1, R0))
    with pytest.raises(TraceError, match=r"t\.jsonl:3: turn: is 0, after turn 1 of session 's'"):
        workload.as_conversations()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"blocks": [1]}, "2: request_id: is missing"),
        ({"request_id": 5, "blocks": [1]}, "2: request_id: is 5; give a non-empty string"),
        ({"request_id": "", "blocks": [1]}, '2: request_id: is ""'),
        ({"request_id": "r"}, "2: blocks: is missing"),
        ({"request_id": "r", "blocks": "1"}, '2: blocks: is "1"; give a list'),
        ({"request_id": "r", "blocks": [0, 3]}, r"2: blocks\[1\]: 3 is not a known block; use the ids 0 to 2"),
        ({"request_id": "r", "blocks": [-1]}, r"2: blocks\[0\]: -1 is not a known block"),
        ({"request_id": "r", "blocks": ["0"]}, r'2: blocks\[0\]: "0" is not a known block'),
        ({"request_id": "r", "blocks": [True]}, r"2: blocks\[0\]: is true"),
        ({"request_id": "r", "blocks": [1.0]}, r"2: blocks\[0\]: is 1.0"),
        ({"request_id": "r", "blocks": [1], "turn": "x"}, '2: turn: is "x"'),
        ({"request_id": "r", "blocks": [1], "turn": -1}, "2: turn: is -1"),
        ({"request_id": "r", "blocks": [1], "session_id": 3}, "2: session_id: is 3"),
        ([1, 2], r"2: is \[1, 2\], not an object"),
    ],
)
def test_a_request_that_cannot_be_used(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"t\.jsonl:{message}"):
        read_workload(write(tmp_path / "t.jsonl", HEADER, line))


def test_a_request_id_stands_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r't\.jsonl:4: request_id: "r0" stands twice'):
        read_workload(write(tmp_path / "t.jsonl", HEADER, R0, R1, R0))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"trace": "t", "tokens": [1, "2"]}, r'1: tokens\[1\]: is "2"'),
        ({"trace": "t", "tokens": [1, -2]}, r"1: tokens\[1\]: is -2"),
        ({"trace": "t", "tokens": [1.5]}, r"1: tokens\[0\]: is 1.5"),
        ({"trace": "t", "tokens": [True]}, r"1: tokens\[0\]: is true"),
        ({"trace": "t", "tokens": 3}, "1: tokens: is 3; give a list"),
        ({"trace": 3, "tokens": [1, 1, 1]}, "1: trace: is 3"),
        ({"trace": "t"}, "1: is neither the head of a trace nor a Batch line"),
        (R0, "1: tokens: the lengths of the blocks are missing"),
    ],
)
def test_a_first_line_that_cannot_be_used(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"t\.jsonl:{message}"):
        read_workload(write(tmp_path / "t.jsonl", header, R0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"t\.jsonl: is empty"),
        (b"\n", r"t\.jsonl:1: is an empty line"),
        (b'{"trace": "t", "tokens": []}\n', r"t\.jsonl:1: no request follows it"),
        (b'{"trace": "t", "tokens": []}\n\n', r"t\.jsonl:2: is an empty line"),
        (b'{"trace": "t", "tokens": []}\n{"request_id"', r"t\.jsonl:2: is not JSON \(.*column 14\)"),
        (b'{"trace": "t", "tokens": []}\n{"x": "\xff"}', r"t\.jsonl:2: is not UTF-8 \(byte 7\)"),
        (b'{"trace": "t", "tokens": [NaN]}\n', r"t\.jsonl:1: is not usable JSON \(NaN is not a JSON number"),
        (b'{"trace": "t", "tokens": [1e999]}\n', r"t\.jsonl:1: is not usable JSON \(1e999 is too large"),
        (b"[" * 100_000, r"t\.jsonl:1: is not usable JSON"),
        (b"9" * 5_000, r"t\.jsonl:1: is not usable JSON"),
        (b"\x1f\x8bnot gzip really", r"t\.jsonl:1: gzip: .*; compress the file again"),
        (gzip.compress(LINE * 2, mtime=0)[:-12], r"t\.jsonl:\d: gzip: .*; compress the file again"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_workload(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere: No such file or directory; give a file that can be read"):
        read_workload(tmp_path / "nowhere")


def test_a_file_that_is_not_what_its_name_says(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not gzip-compressed"):
        read_workload(write(tmp_path / "t.jsonl.gz", HEADER, R0))


@pytest.mark.parametrize("name", ["requests.jsonl", "blocks.jsonl"])
def test_a_folder_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "talk", [{"block_id": "a", "text": "x"}], [{**R0, "blocks": ["a"]}])
    (path / name).unlink()
    with pytest.raises(TraceError, match=f"{name}: is missing"):
        read_workload(path)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"text": "x"}, "block_id: is missing"),
        ({"block_id": None, "text": "x"}, "block_id: is null"),
        ({"block_id": "b"}, "text: is missing"),
        ({"block_id": "b", "text": 3}, "text: is 3"),
        ({"block_id": "b", "text": "x", "tokens": "3"}, 'tokens: is "3"'),
        ({"block_id": "a", "text": "y"}, 'block_id: "a" stands twice'),
    ],
)
def test_a_block_that_cannot_be_used(tmp_path: Path, block: Any, message: str) -> None:
    path = folder(tmp_path / "talk", [{"block_id": "a", "text": "x"}, block], [{**R0, "blocks": ["a"]}])
    with pytest.raises(TraceError, match=rf"blocks\.jsonl:2: {message}"):
        read_workload(path)


def test_a_folder_without_requests(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"requests\.jsonl: holds no request"):
        read_workload(folder(tmp_path / "talk", [{"block_id": "a", "text": "x"}], []))


def test_a_block_that_the_folder_lacks(tmp_path: Path) -> None:
    path = folder(tmp_path / "talk", [{"block_id": "a", "text": "x"}], [{**R0, "blocks": ["a", "b"]}])
    with pytest.raises(TraceError, match=r'requests\.jsonl:1: blocks\[1\]: "b" is not a known block'):
        read_workload(path)


@pytest.mark.parametrize(
    ("written", "answers"),
    [
        ("yes, two", ("yes, two",)),
        (True, ("yes",)),
        (False, ("no",)),
        (["a", "", True], ("a", "yes")),
        ("", ()),
        (None, ()),
    ],
)
def test_reference_answers(tmp_path: Path, written: Any, answers: tuple[str, ...]) -> None:
    entry = read_workload(
        write(tmp_path / "t.jsonl", HEADER, {**R0, "answer": written, "evidence": [1, "x"]})
    ).requests[0]
    assert entry.answers == answers
    assert entry.evidence == (1, "x")


@pytest.mark.parametrize(
    ("name", "written"), [("answer", 7), ("answer", [[]]), ("evidence", [None]), ("evidence", "x")]
)
def test_answers_and_evidence_of_another_kind(tmp_path: Path, name: str, written: Any) -> None:
    with pytest.raises(TraceError, match=name):
        read_workload(write(tmp_path / "t.jsonl", HEADER, {**R0, name: written}))
