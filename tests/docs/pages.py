"""The fenced samples of the pages under ``docs/``, and how their generated parts are written anew.

``python -m tests.docs.pages`` writes them; the tests fail while a page differs from what it would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<mark><!-- runs(?: with (?P<needs>[a-z]+))? -->\n)?```(?P<info>[a-z]+[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]*)"')


class Fence(NamedTuple):
    """One fenced sample.

    Attributes:
        language: ``python``, ``json``, ...
        title: as the page shows it above the sample; empty if it has none.
        text: between the fences, the last line break included.
        runs: the page says (in a comment above) that the sample runs as it stands.
        needs: the framework that the page says it runs with; empty if it needs none.
        line: of the opening fence, from 1.
    """

    language: str
    title: str
    text: str
    runs: bool
    line: int
    needs: str = ""


def pages() -> list[Path]:
    """The pages for users: all of ``docs/`` but the decisions, the log and the structure."""
    return sorted([*DOCS.glob("guides/*.md"), *cookbook(), *(DOCS / f"{name}.md" for name in PAGES)])


def cookbook() -> list[Path]:
    """The pages whose samples are the programs of ``examples/``."""
    return sorted(DOCS.glob("cookbook/*.md"))


PAGES = ("index", "what-changes", "configuration", "operations")


def fences(page: str) -> list[Fence]:
    """All fenced samples of a page's text, in order."""
    return [_fence(page, match) for match in _FENCE.finditer(page)]


def _fence(page: str, match: re.Match[str]) -> Fence:
    title = _TITLE.search(match["info"])
    line = page.count("\n", 0, match.start("info")) + 1
    return Fence(
        match["info"].split()[0],
        title[1] if title else "",
        match["text"],
        match["mark"] is not None,
        line,
        match["needs"] or "",
    )


def rewritten(page: str, write: Callable[[Fence], str | None]) -> str:
    """The page with what ``write`` gives for each sample, in order; ``None`` leaves one as it is."""

    def one(match: re.Match[str]) -> str:
        text = write(_fence(page, match))
        return match[0] if text is None else page[match.start() : match.start("text")] + text + "```"

    return _FENCE.sub(one, page)


def between(page: str, name: str, text: str) -> str:
    """The page with ``text`` between ``<!-- name -->`` and ``<!-- /name -->``."""
    head, opening, rest = page.partition(f"<!-- {name} -->\n")
    _, closing, tail = rest.partition(f"<!-- /{name} -->")
    assert opening and closing, f"no marks of {name}"
    return head + opening + text + closing + tail


def with_examples(page: str) -> str:
    """The page with the programs that its samples name in their titles."""

    def program(fence: Fence) -> str | None:
        named = fence.title.startswith("examples/")
        return (ROOT / fence.title).read_text(encoding="utf-8") if named else None

    return rewritten(page, program)


def write_all() -> None:
    """Write the generated parts of the pages anew."""
    from tests.docs import changes, reference

    for name, write in (("what-changes", changes.written), ("configuration", reference.written)):
        path = DOCS / f"{name}.md"
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in cookbook():
        path.write_text(with_examples(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_all()
