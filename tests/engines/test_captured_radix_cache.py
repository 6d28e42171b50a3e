"""What SGLang's own cache published of itself, as captured, against what it matched: page by page, batch by batch."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.wire import decode
from prefixpilot.residency.pages import PageTable

FOLDER = Path(__file__).parents[1] / "wire" / "sglang-0.5.23-radix"


def ids(runs: list[tuple[int, int]]) -> list[int]:
    return list(chain.from_iterable(range(first, first + count) for first, count in runs))


def test_the_picture_is_what_the_cache_matched_behind_each_batch() -> None:
    answers: dict[str, Any] = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))
    payloads = iter(sorted(FOLDER.glob("*.msgpack")))
    prompts = [(ids(runs), () if salt is None else ((salt,),)) for runs, salt in answers["prompts"]]
    table = PageTable()
    for number, step in enumerate(answers["steps"]):
        before = [table.match(tokens, extra_keys=keys).tokens for tokens, keys in prompts]
        if step["cached"] is not None:
            assert before[step["did"]] == step["cached"], number
        if step["published"]:
            table.apply(EventBatch("sglang", 0, table.sequence + 1, decode(next(payloads).read_bytes()).events))
        assert [table.match(tokens, extra_keys=keys).tokens for tokens, keys in prompts] == step["held"], number
        assert len(table) == step["pages"], number
        table.check_invariants()
    assert next(payloads, None) is None
    assert table.page_size == answers["page"]
    assert table.counts.removed > 0 and not table.counts.unknown_removals
