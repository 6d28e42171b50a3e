"""Every before and after of ``docs/what-changes.md`` is what the proxy's pipeline does now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.docs import changes
from tests.docs.pages import DOCS, fences, rewritten

PAGE = (DOCS / "what-changes.md").read_text(encoding="utf-8")
FENCES = fences(PAGE)


def _both() -> Iterator[tuple[int, str, str]]:
    for sample, sent in changes.samples(FENCES):
        yield sample.engine.line, sample.engine.text, sent


@pytest.mark.parametrize(("line", "told", "sent"), [pytest.param(*one, id=f"line {one[0]}") for one in _both()])
def test_the_engine_gets_what_the_page_says(line: int, told: str, sent: str) -> None:
    assert sent == told, "run `make docs-update`, and look at what changed"


def test_every_request_on_the_page_has_its_answer() -> None:
    titles = [fence.title.split()[0].rstrip(",") for fence in FENCES if fence.language != "toml"]
    assert titles[::2] == ["client"] * (len(titles) // 2)
    assert titles[1::2] == ["engine"] * (len(titles) // 2)


def test_the_page_shows_changes_of_every_kind() -> None:
    """Most samples differ from what the client sent: a page of requests that pass untouched would hold as well."""
    changed = [sent != sample.client.text for sample, sent in changes.samples(FENCES)]
    assert sum(changed) >= 7


def test_writing_the_page_anew_changes_nothing() -> None:
    assert changes.written(PAGE) == PAGE


def test_an_old_sample_is_found() -> None:
    stale = rewritten(PAGE, lambda fence: "=== user ===\nold\n" if fence.title == "engine" else None)
    assert stale != PAGE
    assert changes.written(stale) == PAGE


def test_chats_are_written_as_they_are_read() -> None:
    text = '=== user ===\nGo.\n\n=== assistant calls f {"a": 1} as c1 ===\n\n=== tool, result of c1 ===\nDone.\n'
    assert changes.shown(changes.read(text)) == text
