"""``prefixpilot run``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.testing import Respond, SimulatedEngine


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def write(path: Path, *bodies: dict[str, Any]) -> str:
    lines = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i, body in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def body(*blocks: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "context_blocks": [*blocks], **more}


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line]


def test_results_are_a_batch_output_and_a_second_run_calls_nothing(
    engine: SimulatedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hm?"}]}
    batch = write(tmp_path / "b.jsonl", body("one", "two", seed=3, top_k=5), plain, body("two", "one"))
    out = tmp_path / "out.jsonl"
    command = ["run", batch, "--engine", f"{engine.base_url}/v1", "-o", str(out), "--concurrency", "1", "--json"]
    assert main(command) == 0
    first = out.read_text()
    assert [line["custom_id"] for line in lines(first)] == ["c0", "c1", "c2"]
    answered = lines(first)[0]["response"]
    assert answered["status_code"] == 200 and answered["body"]["choices"][0]["message"]["content"]
    summary = json.loads(capsys.readouterr().out)
    assert (summary["requests"], summary["failed"]) == (3, 0) and 0 < summary["hit_rate"] < 1
    sent = {json.dumps(chat.json()["messages"][0]["content"]): chat.json() for chat in engine.chats}
    first_body = next(each for each in sent.values() if each.get("seed"))
    assert first_body["top_k"] == 5 and "context_blocks" not in first_body
    assert "Hm?" in {chat.json()["messages"][0]["content"] for chat in engine.chats}
    assert summary["done_before"] == 0
    out.unlink()
    assert main(command) == 0
    assert out.read_text() == first and len(engine.chats) == 3
    assert json.loads(capsys.readouterr().out) == {**summary, "done_before": 3}
    assert main(command[:-1]) == 0
    assert "0 sent, 3 were done before" in capsys.readouterr().out


def test_an_engine_may_be_named_without_v1(engine: SimulatedEngine, tmp_path: Path) -> None:
    batch = write(tmp_path / "b.jsonl", body("one"))
    for url in (engine.base_url, f"{engine.base_url}/"):
        assert (
            main(["run", batch, "--engine", url, "-o", str(tmp_path / "o"), "--done", f"{tmp_path}/d{len(url)}"]) == 0
        )
    assert [request.path for request in engine.requests] == ["/v1/chat/completions"] * 2


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://127.0.0.1/v1", "http://", "http://h:x/v1", "http://h:0", "http://h/v1?key=1", ""]
)
def test_what_is_no_url_is_refused_before_anything_is_read(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "no such file", "--engine", url])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and "no base URL" in err and err.count("\n") == 1


def test_failed_calls_are_lines_and_the_status(
    engine: SimulatedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.fault = Respond(status=400, body=b'{"error": {"message": "too long"}}')
    batch = write(tmp_path / "b.jsonl", body("one"))
    assert main(["run", batch, "--engine", f"{engine.base_url}/v1"]) == 1
    out, err = capsys.readouterr()
    (line,) = lines(out)
    assert line["response"] is None and "too long" in line["error"]["message"]
    assert "1, of which 1 failed" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (body("one", model=None), "body.model"),
        (body("one", stream=True), "body.stream"),
        ({"model": "m", "prompt": "Why?"}, "Chat Completions"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], told: str
) -> None:
    batch = write(tmp_path / "b.jsonl", given)
    assert main(["run", batch, "--engine", "http://127.0.0.1:9/v1", "-o", str(tmp_path / "o")]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
    assert not (tmp_path / "o").exists()
