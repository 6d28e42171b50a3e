"""All recognisers side by side: which of what they find counts."""

from __future__ import annotations

import itertools
import json

from prefixpilot.apis.base import Message, Role, Segment
from prefixpilot.formats.base import NoEdges, Region
from prefixpilot.formats.catalogue import ASKED_LAST, RECOGNISERS, in_message, named, regions
from prefixpilot.formats.edges import EdgeStore
from prefixpilot.formats.weak import WEAK, learn

RECORDS = [{"title": f"T{i}", "content": f"Loaf {i}."} for i in range(2)]


def found(text: str, role: Role = "tool") -> tuple[Region, ...]:
    return regions(Segment((), text, role, 0), RECOGNISERS, NoEdges())


def test_a_tool_result_is_one_unit_only_if_nothing_is_found_in_it() -> None:
    assert [region.format for region in found("four loaves")] == ["tool_result"]
    assert [region.format for region in found(json.dumps({"hits": RECORDS}))] == ["json_results"]
    known = [{**record, "document": 1} for record in RECORDS]
    assert [region.format for region in found(json.dumps({"results": known}))] == ["onyx"]
    assert [region.format for region in found("Exit code: 0\nOutput:\nok")] == ["codex"]


def test_a_user_may_say_anything() -> None:
    for text in ("four loaves", json.dumps(RECORDS), "Exit code: 0\nOutput:\nok", "1\ta\n2\tb"):
        assert found(text, "user") == ()
        assert found(text, "system") == ()


def test_weak_marks_count_only_where_nothing_else_is_found() -> None:
    tagged = "\n".join(f'<document index="{i}">\n{word}\n</document>' for i, word in enumerate(("rye", "spelt"), 1))
    documents = f"<documents>\n{tagged}\n</documents>"
    notes = [
        f"Note {name}. " + "The oven is lit at four and closed at eleven, on every day but Monday. " * 2
        for name in "abcd"
    ]
    store = EdgeStore()
    for order in itertools.permutations(notes):
        learn([Segment((), "\n\n".join(["You bake.", *order]), "system", 0)], RECOGNISERS, store)
    proved = "\n\n".join(["You bake.", *notes])
    assert WEAK[-1].name == "langchain_stuff"
    assert [one.format for one in regions(Segment((), proved, "system", 0), RECOGNISERS, store)] == ["langchain_stuff"]
    both = f"{proved}\n\n{documents}"
    (region,) = regions(Segment((), both, "system", 0), RECOGNISERS, store)
    assert region.format not in ASKED_LAST
    assert len(region.units) == 2


def test_results_that_only_parts_together_show() -> None:
    texts = ["[read_file for 'oven.py'] Result:", "heat = 240", "thanks"]
    segments = tuple(Segment((i,), text, "user", 3) for i, text in enumerate(texts))
    message = Message("user", (), None, segments)
    (one,) = in_message(message, RECOGNISERS, NoEdges())
    assert (one.segment, one.region.format) == (segments[1], "cline")
    assert not list(in_message(message, named(["aider"]), NoEdges()))


def test_a_result_that_is_numbered_lines_of_a_part_counts_once() -> None:
    segments = (Segment((0,), "1\ta\n2\tb", "tool", 3, call_id="c"), Segment((1,), "x", "tool", 3, call_id="d"))
    message = Message("tool", (), None, segments)
    assert [one.region.format for one in in_message(message, RECOGNISERS, NoEdges())] == ["claude_code", "tool_result"]
