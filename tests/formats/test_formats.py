"""Every format, on texts that its application would write: what is found, what is not, and that nothing is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.writers import DOCUMENTS, FIRST, SECOND, WRITERS, Document, Writer, Written

from prefixpilot.apis.base import Role, Segment
from prefixpilot.errors import ConfigError
from prefixpilot.formats.base import NoEdges, Region
from prefixpilot.formats.catalogue import RECOGNISERS, named, regions
from prefixpilot.formats.fenced import FenceRecogniser
from prefixpilot.formats.runs import RunRecogniser
from prefixpilot.pieces import Span, apply, fill, permuted

OURS: Final = {one.name for one in RECOGNISERS if isinstance(one, (RunRecogniser, FenceRecogniser))}


def found(text: str, role: Role = "system", sealed: bool = False) -> tuple[Region, ...]:
    return regions(Segment((), text, role, 0, sealed=sealed), RECOGNISERS, NoEdges())


def the_region(writer: Writer, written: Written) -> Region:
    (region,) = [one for one in found(written.text, writer.role) if one.movable and one.format == writer.name]
    return region


def moved(text: str, region: Region, order: list[int]) -> str:
    return apply(fill(len(text), permuted([unit.span for unit in region.units], order)), text)


def numbered(writers: tuple[Writer, ...]) -> list[str]:
    return [f"{writer.name}-{index}" for index, writer in enumerate(writers)]


every_writer = pytest.mark.parametrize("writer", WRITERS, ids=numbered(WRITERS))


def test_every_recogniser_has_a_writer() -> None:
    assert {writer.name for writer in WRITERS} == OURS


@every_writer
@pytest.mark.parametrize("documents", [FIRST, SECOND, FIRST[:2]], ids=["first", "second", "two"])
def test_units_and_bodies_are_those_that_were_written(writer: Writer, documents: tuple[Document, ...]) -> None:
    written = writer.write(documents)
    proved = None if writer.last_proved else -1
    if proved and len(documents) == 2:
        assert found(written.text, writer.role) == ()
        return
    region = the_region(writer, written)
    text = written.text
    assert [text[unit.span.start : unit.span.end] for unit in region.units] == list(written.blocks[:proved])
    assert [text[unit.body.start : unit.body.end] for unit in region.units] == list(written.bodies[:proved])
    assert region.movable
    assert [one for one in found(text, writer.role) if one.movable] == [region]


@every_writer
def test_equal_documents_are_found_equal_in_another_request(writer: Writer) -> None:
    first, second = writer.write(FIRST), writer.write(SECOND)
    one, other = the_region(writer, first).units, the_region(writer, second).units
    shared = {unit.text for unit in one} & {unit.text for unit in other}
    assert len(shared) == (3 if writer.last_proved else 1)
    if writer.stable:
        blocks = {first.text[unit.span.start : unit.span.end] for unit in one if unit.text in shared}
        assert blocks == {second.text[unit.span.start : unit.span.end] for unit in other if unit.text in shared}


@every_writer
@settings(max_examples=20)
@given(data=st.data())
def test_any_order_keeps_every_unit_and_can_be_undone(writer: Writer, data: st.DataObject) -> None:
    written = writer.write(FIRST)
    region = the_region(writer, written)
    order = data.draw(st.permutations(range(len(region.units))))
    sent = moved(written.text, region, order)
    assert all(block in sent for block in written.blocks)
    assert sent.startswith(written.text[: region.units[0].span.start])
    assert sent.endswith(written.text[region.units[-1].span.end :])
    assert len(sent) == len(written.text)
    places = placed(region, order)
    undone = fill(len(sent), permuted(places, [order.index(place) for place in range(len(order))]))
    assert apply(undone, sent) == written.text


def placed(region: Region, order: list[int]) -> list[Span]:
    """Where the units stand after they were moved."""
    spans = [unit.span for unit in region.units]
    gaps = [after.start - before.end for before, after in pairwise(spans)]
    places, at = [], spans[0].start
    for source, gap in zip(order, [*gaps, 0], strict=True):
        length = spans[source].end - spans[source].start
        places.append(Span(at, at + length))
        at += length + gap
    return places


@every_writer
def test_what_a_tool_or_an_assistant_says_is_left_alone(writer: Writer) -> None:
    text = writer.write(FIRST).text
    others = [one for role in ("tool", "assistant") for one in found(text, role)]
    assert not any(one.movable or one.format in OURS for one in others)
    assert found(text, writer.role, sealed=True) == ()


LOOK_ALIKES = (
    *("</source>", "</doc>", "</document>", "</result>", "</passage>", "</file>", "<context>", "</context>"),
    *("<documents>", "</documents>", "</document_content>", "</search_results>", "</memory_blocks>", "</value>"),
    *("]]>", "</contextItem>", "<br>", "\n<br>", "---", "\n---\n", "\n------\n", "\n---------------------\n", "\n\n"),
    *("\n", "Source 2:\n", "\n\nSource 9:\n", "\nID: 45\n", "[CONTEXT 3]:", "[END CONTEXT 1]", "\n[END CONTEXT 9]"),
    *(
        "\n\n\n",
        "Title: x\n",
        "\n- ",
        "\n2. ",
        "[2] ",
        "\n[1] see",
        '"',
        "\\",
        "```sh\nls\n```",
        "ø",
        "plain words",
        " ",
    ),
    *('<source id="7" name="q">quoted</source>', "<doc id='1'>quoted</doc>", "<document>quoted</document>"),
)


def hostile() -> st.SearchStrategy[str]:
    """Bodies that quote marks, but begin and end with words of their own."""
    middle = st.lists(st.sampled_from(LOOK_ALIKES), max_size=4)
    return middle.map(
        lambda parts: f"Words about {' and '.join(parts)} that say something, at some length, to the end."
    )


@every_writer
@settings(max_examples=50)
@given(bodies=st.lists(hostile(), min_size=2, max_size=5))
def test_marks_that_a_body_quotes_split_no_body(writer: Writer, bodies: list[str]) -> None:
    written = writer.write([Document(f"note-{index}.md", body) for index, body in enumerate(bodies)])
    for region in found(written.text, writer.role):
        if region.movable:
            assert not cut(written, region), region


def cut(written: Written, region: Region) -> list[str]:
    """Bodies in which an edge of a unit stands."""
    edges = {edge for unit in region.units for edge in unit.span}
    split, at = [], 0
    for block, body in zip(written.blocks, written.bodies, strict=True):
        at = written.text.index(block, at)
        start = at + block.index(body)
        if any(start < edge < start + len(body) for edge in edges) and not inside(region, start, start + len(body)):
            split.append(body)
        at += len(block)
    return split


def inside(region: Region, start: int, end: int) -> bool:
    """Whether a region stands in one body: a list in a document, that is one itself."""
    return start <= region.units[0].span.start and region.units[-1].span.end <= end


NOTHING = {
    "worked example": "Source 1:\nOne.\n\nSource 2:\nTwo.\nAnswer: [1]",
    "steps": "Do this:\n\n1. First.\n2. Then.\n\n[1] First.\n\n[2] Then.",
    "rules about memories": "Rules for memories:\n- Never tell them.\n- Ask first.",
    "one document": "<doc>Alone.</doc>",
    "pages": "<page>One</page>\n<page>Two</page>",
    "hits without numbers": "<result>One</result>\n<result>Two</result>",
    "words between": "<doc>One</doc>\nand then\n<doc>Two</doc> or",
    "not closed": "<doc>One</doc>\n<doc>Two",
    "other attributes": '<doc id="1">One</doc>\n<doc name="a">Two</doc>',
    "metadata without frame": "file: a\nkind: b\n\nText.\n\nfile: c\nkind: d\n\nText.",
    "rule in markdown": "# A\n\ntext\n\n---\n\n# B\n\ntext",
    "shell blocks": "```sh\nls\n```\n\n```py\nprint()\n```",
    "fence not closed": "a.py\n```\nx\n```\n\nb.py\n```\ny\n",
    "ranked table": "-----Entities-----\nid|entity\n1|a description, long enough\n2|another as long\n",
    "rows of a csv in a row": (
        "-----Sources-----\nid|text\n7|A table of prices and of what they were a year ago:\n1|2\n2|3\n\n---End---\n"
    ),
    "repo map": "src/a.py:\n⋮\n│def f():\n⋮\n\nsrc/b.py:\n⋮\n│def g():\n",
    "numbers do not count up": "Sources:\n\n[1] One.\n\n[3] Three.\n\n---\n",
}


@pytest.mark.parametrize("text", NOTHING.values(), ids=NOTHING)
def test_nothing_is_found_where_nothing_is_proved(text: str) -> None:
    assert found(text, "user") == found(text, "system") == ()


def test_a_number_that_stands_twice_is_a_doubt() -> None:
    (writer,) = [one for one in WRITERS if one.name == "llamaindex_citation"]
    fake = Document("x", "It says\n\nSource 3:\nand more.")
    assert found(writer.write([FIRST[0], fake, FIRST[1], FIRST[2]]).text, "user") == ()


def test_items_stay_in_their_file() -> None:
    text = "<context>{}\n</context>".format(
        "".join(
            f"\n<file>\n<filename>{name}</filename>\n<context>\n"
            + "\n".join(f"<contextItem>\n<![CDATA[{name} {item}]]>\n</contextItem>" for item in range(count))
            + "\n</context>\n</file>"
            for name, count in [("a.txt", 2), ("b.txt", 3), ("c.txt", 1)]
        )
    )
    hits = found(text)
    assert [[unit.text for unit in region.units] for region in hits] == [
        ["a.txt 0", "a.txt 1"],
        ["b.txt 0", "b.txt 1", "b.txt 2"],
        ["c.txt 0"],
    ]
    assert [region.movable for region in hits] == [True, True, False]
    assert [region.units[0].label for region in hits] == ["a.txt", "b.txt", "c.txt"]


def test_rows_stay_in_their_table() -> None:
    rows = "\n".join(f"{n}|{document.body}" for n, document in enumerate(FIRST, 40))
    claims = f"-----Claims-----\nid|claim\n50|{DOCUMENTS[5].body}\n51|{DOCUMENTS[6].body}\n"
    text = f"-----Sources-----\nid|text\n{rows}\n\n{claims}"
    (region,) = found(text)
    assert [unit.label for unit in region.units] == ["40", "41", "42", "43", "44"]
    assert region.units[-1].text == FIRST[-1].body


@pytest.mark.parametrize(
    ("numbers", "ranked"), [((1, 2, 3), True), ((4, 5, 6), True), ((3, 1, 2), False), ((17, 40, 41), False)]
)
@pytest.mark.parametrize("unit", ['<source id="{}">{}</source>', '<doc index="{}">{}</doc>', "<doc id='{}'>{}</doc>"])
def test_numbers_tell_the_order_if_they_count_up(unit: str, numbers: tuple[int, ...], ranked: bool) -> None:
    units = "\n".join(unit.format(n, document.body) for n, document in zip(numbers, FIRST, strict=False))
    (region,) = found(f"<context>\n{units}\n</context>")
    assert region.ranked == ranked


@pytest.mark.parametrize(
    ("head", "label"),
    [
        ('<document index="1">', None),
        ("<document index='1' rank='2'>", None),
        ('<document index="1">\n<source>soil.md</source>', "soil.md"),
        ('<document id="7">', 'id="7"'),
        ('<document index="1" name="soil.md">', 'index="1" name="soil.md"'),
    ],
)
def test_a_number_that_only_counts_is_no_label(head: str, label: str | None) -> None:
    (region,) = found(f"{head}\n<document_content>\n{FIRST[0].body}\n</document_content>\n</document>\n")
    assert [unit.label for unit in region.units] == [label]


def test_names_do_not_tell_the_order_and_falling_scores_do() -> None:
    ranked = {writer.name: the_region(writer, writer.write(FIRST)).ranked for writer in WRITERS}
    assert (ranked["tagged"], ranked["headed_blocks"], ranked["graphrag_local"]) == (False, False, False)
    assert (ranked["verba"], ranked["anythingllm"], ranked["quivr"]) == (True, True, True)


def test_a_paragraph_that_looks_like_metadata_is_no_document() -> None:
    (writer,) = [one for one in WRITERS if one.name == "llamaindex_text_qa"]
    documents = [FIRST[0], Document("x", "Note: see below.\n\nMore: words.\n\nThe end."), *FIRST[1:]]
    written = writer.write(documents)
    assert [unit.text for unit in the_region(writer, written).units] == list(written.bodies)


def test_the_outermost_region_counts() -> None:
    inner = "".join(f"<doc id='{n}'>{document.body}</doc>\n" for n, document in enumerate(FIRST))
    text = f'<document id="a">\n{inner}</document>\n<document id="b">\n{inner}</document>\n'
    (region,) = found(text)
    assert region.format == "tagged"
    assert [unit.label for unit in region.units] == ['id="a"', 'id="b"']


def test_escaped_lines_are_the_same_document_as_plain_ones() -> None:
    (plain,) = [one for one in WRITERS if one.name == "llamaindex_citation"]
    (escaped,) = [one for one in WRITERS if one.name == "lightrag"]
    documents = [Document("a", 'Grüße,\n\n"so" it says, and \\ too.'), *FIRST]
    one, other = the_region(plain, plain.write(documents)), the_region(escaped, escaped.write(documents))
    assert [unit.text for unit in one.units] == [unit.text for unit in other.units]


def test_a_line_that_is_no_json_is_a_doubt() -> None:
    lines = ['{"reference_id": "1", "content": "one"}', '{"reference_id": "2", "content": "tw\\o"}']
    assert found("```json\n" + "\n".join(lines) + "\n```") == ()
    assert json.loads(lines[0])["content"] == "one"


MARKS = sorted(
    {*(writer.before[-40:] for writer in WRITERS), *(writer.after[:40] for writer in WRITERS), *LOOK_ALIKES} - {""}
)
ROLES: Final[tuple[Role, ...]] = ("system", "user")
UNITS = [unit for writer in WRITERS for unit in writer.write(FIRST[:2]).blocks]


@given(st.lists(st.sampled_from([*MARKS, *UNITS]) | st.text(max_size=6), max_size=24).map("".join))
def test_no_text_raises_and_what_is_found_is_there(text: str) -> None:
    for role in ROLES:
        at = 0
        for region in found(text, role):
            for unit in region.units:
                assert at <= unit.span.start <= unit.body.start <= unit.body.end <= unit.span.end <= len(text)
                body = text[unit.body.start : unit.body.end]
                assert unit.text == (json.loads(f'"{body}"') if region.literal == "json" else body)
                at = unit.span.end
            assert len(region.units) > 1 or not region.movable
        assert found(text, role) == found(text, role)


REPEATED = (
    *("<doc>", "</doc>", "<doc id='1'>x</doc>\n", "<doc id='", '<source id="1">', "<contextItem><![CDATA[", "<a>\n"),
    *("</a>\n", "<document>\n<source>", "<document index=", "<result index=1 title=", "<br><b>Content from "),
    *("\n<br>", "```a.b\n", "```\n", "a.b\n```\nx\n```\n\n", "x: y\n", "\n\nx: y\n", "\n\n", " ", "- a\n", "1|2\n"),
    *("1. [2020-01-01] a\n", "[1] a\n\n", "Document ", "Source 1:\n", "ID: 0\n", "├── T\n", "Title: a\n", "------\n"),
    *("---------------------\n", "sources:\n", '{"reference_id": "1", "content": "a"}\n', '"}\n', "[CONTEXT 0]:\n"),
    *("[END CONTEXT 0]\n", "\n---\n", "</x>\n", "Filename: ", "Document Title: "),
)


@pytest.mark.no_cover
@pytest.mark.parametrize("mark", REPEATED)
def test_long_texts_of_one_mark_are_read_to_their_end(mark: str) -> None:
    """Would not come to an end if the cost grew with the square of the length."""
    text = mark * (60_000 // len(mark))
    for front in ("", "<context>\n", "-----Sources-----\nid|text\n", "User Memories:\n"):
        at = 0
        for region in found(front + text, "user"):
            assert region.units[0].span.start >= at
            at = region.units[-1].span.end


def test_recognisers_are_chosen_by_name() -> None:
    assert [one.name for one in named(["aider", "letta"])] == ["letta", "aider", "aider"]
    with pytest.raises(ConfigError, match="no recogniser"):
        named(["aider", "alder"])
