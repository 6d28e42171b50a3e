"""Marks: which literals stand in a text, and that no recogniser is passed over that would find something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.writers import DOCUMENTS, FIRST, WRITERS, Writer

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, NoEdges, Recogniser, Region
from prefixpilot.formats.catalogue import RECOGNISERS, regions
from prefixpilot.formats.marks import Marks, asked

ROLES: Final[tuple[Role, ...]] = ("system", "user", "tool")
ALL_MARKS: Final = sorted({m for one in RECOGNISERS for group in getattr(one, "marks", ()) for m in group})


class AllBorders:
    """Takes every place for a proved border: the formats without marks find whatever they may."""

    def joints(self, form: str, texts: Sequence[str], framed: bool) -> tuple[int, ...]:
        return tuple(range(len(texts) + 1)) if texts else ()


class Counting:
    """A recogniser that counts how often it is asked."""

    def __init__(self, one: Recogniser) -> None:
        self.name = one.name
        self.marks = getattr(one, "marks", ())
        self.roles = getattr(one, "roles", ROLES)
        self.calls = 0
        self._one = one

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        self.calls += 1
        return self._one.find(segment, edges)


def names(text: str, role: Role) -> list[str]:
    """Who is asked about a string."""
    return [one.name for one in asked(Segment((), text, role, 0), RECOGNISERS)]


def calls(text: str, role: Role) -> dict[str, int]:
    """How often each recogniser is run on a string, if it is at all."""
    counting = [Counting(one) for one in RECOGNISERS]
    regions(Segment((), text, role, 0), counting, NoEdges())
    return {one.name: one.calls for one in counting if one.calls}


@given(
    text=st.lists(st.sampled_from([*ALL_MARKS, "\n", "<", "[", "-", " "]) | st.text(max_size=4), max_size=8),
    mark=st.sampled_from(ALL_MARKS) | st.text("\n<[a-", max_size=5),
)
def test_a_mark_is_found_where_it_stands(text: list[str], mark: str) -> None:
    whole = "".join(text)
    marks = Marks(whole)
    assert marks.has(mark) == (mark in f"\n{whole}")
    assert marks.has(mark) == (mark in f"\n{whole}")
    assert all(marks.has(other) == (other in f"\n{whole}") for other in ALL_MARKS)


@pytest.mark.parametrize("first", ["\n", "<", "["])
def test_a_text_of_openings_is_searched_all_the_same(first: str) -> None:
    text = first * 20_000
    assert not Marks(text).has(f"{first}Title: ")
    assert Marks(f"{text}Title: ").has(f"{first}Title: ")


def test_one_mark_of_each_group() -> None:
    marks = Marks("Title: rye\n<doc>")
    assert marks.hold(())
    assert marks.hold((("Source: ", "\nTitle: "), ("<doc",)))
    assert not marks.hold((("\nTitle: ",), ("Source: ",)))


WHOLE = [writer.write(DOCUMENTS[:3]).text for writer in WRITERS]
UNITS = [unit for writer in WRITERS for unit in writer.write(FIRST[:2]).blocks]
OTHERS = (
    *("Question: Why?\nContext: One.\n\nTwo.\nAnswer:", "Documents:\n  One.\n  Two.\nQuestion: Why?", "\n\n", "\n"),
    *("<context>\nOne.\nTwo.\n</context>", "OBSERVATION:\nx", "Here's the result of running `cat -n` on /a:\n1\tx"),
    *("x\n[Current working directory: /w]\n[Command finished with exit code 0]", "[Python interpreter: /p]"),
    *('<file_content path="a">\nx\n</file_content>', "Source: {'a': 1}\nContent: x", "1\tx\n2\ty", "Memories:\n- "),
    *(json.dumps({"results": [{"document": 1, "content": "x"}]}), json.dumps({"output": "x", "metadata": {}})),
    *(json.dumps({"url": "u", "title": "t", "description": "d"}), json.dumps([{"text": "a"}, {"text": "b"}])),
    '<FACTS>\n[{"fact": "f", "valid_at": "x", "invalid_at": "y"}]\n</FACTS>',
)
PIECES = st.sampled_from([*WHOLE, *UNITS, *OTHERS, *ALL_MARKS, *(mark.lstrip("\n") for mark in ALL_MARKS)])


@settings(max_examples=150)
@given(text=st.lists(PIECES | st.text(max_size=3), max_size=6).map("".join), role=st.sampled_from(ROLES))
def test_who_finds_something_is_asked(text: str, role: Role) -> None:
    segment = Segment((), text, role, 0)
    asking = list(asked(segment, RECOGNISERS))
    for one in RECOGNISERS:
        assert one in asking or one.find(segment, AllBorders()) == (), one.name


@pytest.mark.parametrize("text", [*WHOLE, *OTHERS])
def test_who_finds_something_in_what_an_application_writes_is_asked(text: str) -> None:
    for role in ROLES:
        segment = Segment((), text, role, 0)
        asking = list(asked(segment, RECOGNISERS))
        finding = [one for one in RECOGNISERS if one.find(segment, AllBorders())]
        assert [one.name for one in finding if one not in asking] == []


PROSE = "\n\n".join(f"{document.body} It is said - by some: not all - that it is odd." for document in FIRST)
CODE = (
    'def f(x: dict[str, int]) -> list[str]:\n    """Text."""\n    return [k for k in x if x[k] < 3]  # why\n\n\n' * 40
)


@pytest.mark.parametrize("text", [PROSE * 50, CODE], ids=["prose", "code"])
def test_where_no_mark_stands_hardly_any_recogniser_runs(text: str) -> None:
    assert calls(text, "user") == {"swe_agent": 1}
    assert calls(text, "system") == {"langchain_stuff": 1}
    assert calls("", "user") == {"swe_agent": 1}


@pytest.mark.parametrize("writer", WRITERS, ids=[f"{one.name}-{i}" for i, one in enumerate(WRITERS)])
def test_where_marks_stand_few_recognisers_run(writer: Writer) -> None:
    text = writer.write(FIRST).text
    ran = calls(text, writer.role)
    assert writer.name in ran
    assert len(ran) <= 5
    assert set(ran) <= set(names(text, writer.role))


def test_a_sealed_string_is_not_read() -> None:
    counting = Counting(RECOGNISERS[-1])
    assert regions(Segment((), "four loaves", "tool", 0, sealed=True), [counting], NoEdges()) == ()
    assert counting.calls == 0


def test_a_recogniser_without_marks_is_always_asked() -> None:
    class Plain:
        name = "plain"

        def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
            return ()

    plain = Plain()
    assert list(asked(Segment((), "", "assistant", 0), [plain])) == [plain]
