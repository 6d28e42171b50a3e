"""OpenAI Batch files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.errors import TraceError
from prefixpilot.workloads import read_workload


def line(custom_id: Any = "c1", **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "context_blocks": ["one", {"text": "two"}]}
    given = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **changes}
    return {key: value for key, value in given.items() if value is not ...}


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def test_blocks_are_those_of_the_body(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path, line("c1"), line("c2")))
    assert workload.name == "b.jsonl"
    assert workload.is_batch
    assert [entry.request.request_id for entry in workload.requests] == ["c1", "c2"]
    assert [block.text for block in workload.requests[0].request.blocks] == ["one", "two"]


def test_models_do_not_share(tmp_path: Path) -> None:
    other = line("c2", body={**line()["body"], "model": "n"})
    first, second = read_workload(write(tmp_path, line("c1"), other)).requests
    assert first.request.scope != second.request.scope


def test_rendering_keeps_everything_else(tmp_path: Path) -> None:
    given = line(
        extra=[1], body={"messages": [{"role": "user", "content": "Why?"}], "context_blocks": ["x"], "seed": 3}
    )
    batch = read_workload(write(tmp_path, given)).requests[0].batch
    assert batch is not None
    rendered = batch.render("[Doc 1]\nx")
    assert list(rendered) == list(given)
    assert rendered["body"] == {"messages": [{"role": "user", "content": "[Doc 1]\nx\n\nWhy?"}], "seed": 3}
    assert rendered["extra"] == [1]


BLOCKS = ["one", {"text": "two"}]
OTHERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Why?"}, {"prompt": "[Doc 1]\nx\n\nWhy?"}),
    ("/v1/responses", {"input": "Why?"}, {"input": "[Doc 1]\nx\n\nWhy?"}),
]


@pytest.mark.parametrize(("url", "body", "sent"), OTHERS)
def test_lines_to_other_apis(tmp_path: Path, url: str, body: dict[str, Any], sent: dict[str, Any]) -> None:
    given = line(url=url, body={"model": "m", **body, "context_blocks": BLOCKS})
    entry = read_workload(write(tmp_path, given)).requests[0]
    assert [block.text for block in entry.request.blocks] == ["one", "two"]
    assert entry.batch is not None
    assert entry.batch.render("[Doc 1]\nx") == {**given, "body": {"model": "m", **sent}}


def test_lines_of_anthropic_have_params(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Why?"}]
    given = {
        "custom_id": "c",
        "params": {"model": "m", "max_tokens": 9, "messages": messages, "context_blocks": BLOCKS},
    }
    entry = read_workload(write(tmp_path, given)).requests[0]
    assert [block.text for block in entry.request.blocks] == ["one", "two"]
    assert entry.batch is not None
    sent = entry.batch.render("[Doc 1]\nx")
    assert list(sent) == list(given)
    assert sent["params"]["messages"] == [{"role": "user", "content": "[Doc 1]\nx\n\nWhy?"}]
    assert "context_blocks" not in sent["params"]


@pytest.mark.parametrize("params", [3, {"messages": [], "context_blocks": ["x"]}])
def test_bad_params_are_named(tmp_path: Path, params: Any) -> None:
    with pytest.raises(TraceError, match="params"):
        read_workload(write(tmp_path, {"custom_id": "c", "params": params}))


def test_a_line_without_blocks_stays_as_it_is(tmp_path: Path) -> None:
    given = line(url="/v1/embeddings", body={"input": "x"})
    entry = read_workload(write(tmp_path, given)).requests[0]
    assert entry.request.blocks == ()
    assert entry.batch is not None
    assert entry.batch.render("") == given


def test_there_are_no_conversations(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"b\.jsonl:1: a Batch line names no session; leave out --multi-turn"):
        read_workload(write(tmp_path, line())).as_conversations()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (line("c1"), 'custom_id: "c1" stands twice'),
        (line(custom_id=...), "custom_id: is missing"),
        (line(custom_id=3), "custom_id: is 3"),
        (line("c2", method=...), "method: is missing"),
        (line("c2", method="GET"), 'method: is "GET"'),
        (line("c2", url=...), "url: is missing"),
        (line("c2", url="/v1/embeddings"), 'url: is "/v1/embeddings"; context_blocks go with'),
        (line("c2", body=...), "body: is missing"),
        (line("c2", body=[]), r"body: is \[\]; give an object"),
        (line("c2", body={"context_blocks": ["x"]}), "body.messages: is missing"),
        (line("c2", body={**line()["body"], "context_blocks": "x"}), "body.context_blocks: is a string"),
        (line("c2", body={**line()["body"], "context_blocks": ["x", {"id": 1}]}), r"body.context_blocks\[1\].text"),
    ],
)
def test_a_line_that_cannot_be_used(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"b\.jsonl:2: {message}"):
        read_workload(write(tmp_path, line("c1"), given))
