"""Texts of blocks that came before: a request is sent as if they had not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call

LONG = 'A long line, "quoted".\n' * 20
BLOCKS: list[list[Any]] = [
    [LONG + "a", LONG + "b", LONG + "c"],
    [LONG + "c", LONG + "a"],
    [{"text": LONG + "a"}, {"text": LONG + "a", "title": "T"}, {"text": LONG + "a", "id": 1}],
    ["é" + LONG, LONG + "b", "short", LONG + "\ud800"],
]


def sent(app: ProxyApp, blocks: list[Any], question: str) -> tuple[bytes, dict[str, Any]]:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "context_blocks": blocks}
    forward = app.pipeline.prepare(Call([(b"x-request-id", b"r")], json.dumps(body).encode()))
    return forward.body, json.loads(forward.plan_header or b"")


@pytest.mark.parametrize("question", ["Why?", "Où?"])
def test_what_is_sent_does_not_depend_on_what_came_before(question: str) -> None:
    settings = ProxySettings("http://127.0.0.1:9")
    app = ProxyApp(settings)
    for blocks in BLOCKS * 2:
        assert sent(app, blocks, question) == sent(ProxyApp(settings), blocks, question)


def test_they_are_forgotten_with_all_else() -> None:
    app = ProxyApp(ProxySettings("http://127.0.0.1:9"))
    sent(app, BLOCKS[0], "Why?")
    texts = app._texts
    assert min(texts.elements.size, texts.blocks.size, texts.placing.size) > len(LONG)
    texts.clear()
    assert texts.elements.size == texts.blocks.size == texts.placing.size == 0
