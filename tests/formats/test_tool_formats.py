"""Results of tools and of agents: every body is found exactly, and can be replaced in its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot.apis.base import Message, Role, Segment
from prefixpilot.formats.base import NoEdges, Recogniser, Region, written
from prefixpilot.formats.check import check_recogniser, check_regions
from prefixpilot.formats.json_results import (
    BRAVE,
    ONYX,
    TAVILY,
    AnyJsonRecogniser,
    JsonRecogniser,
    ZepRecogniser,
)
from prefixpilot.formats.json_results import (
    CODEX as CODEX_JSON,
)
from prefixpilot.formats.tool_results import (
    CODEX,
    LANGCHAIN_RETRIEVER_TOOL,
    LIBRECHAT_FILE_SEARCH,
    MCP_FILESYSTEM,
    TAVILY_MCP,
    HeadRecogniser,
)
from prefixpilot.formats.trajectories import (
    CommandOutput,
    FileContents,
    NumberedLines,
    Observation,
    WholeResult,
    results_in_parts,
)
from prefixpilot.pieces import Slot, apply, fill

PATHS = ["/srv/oven/bake.py", "notes/flour.md", "C:\\mill\\gear.txt", "./a b/rye.toml", "doc.md", "/x/y.z", "/e/f.g"]


def segment(text: str, role: Role = "tool", sealed: bool = False) -> Segment:
    return Segment(("messages", 2, "content"), text, role, 2, sealed, call_id="c1" if role == "tool" else None)


def _langchain(bodies: Sequence[str]) -> str:
    return "\n\n".join(
        f"Source: {{'file': '{PATHS[i]}', 'row': {i}}}\nContent: {body}" for i, body in enumerate(bodies)
    )


def _librechat(bodies: Sequence[str]) -> str:
    return "\n---\n".join(
        f"File: {PATHS[i]}\nAnchor: \\ue202turn3file{i} ({PATHS[i]})\nRelevance: 0.{98 - i}\nContent: {body}\n"
        for i, body in enumerate(bodies)
    )


def _tavily_mcp(bodies: Sequence[str]) -> str:
    hits = (f"Title: Hit {i}\nURL: https://mill.example/{i}\nContent: {body}" for i, body in enumerate(bodies))
    return "Detailed Results:\n\n" + "\n\n".join(hits)


def _tavily_mcp_images(bodies: Sequence[str]) -> str:
    return f"Answer: Rye.\n{_tavily_mcp(bodies)}\n\nImages:\n\n[1] URL: https://mill.example/a.png"


def _mcp_filesystem(bodies: Sequence[str]) -> str:
    return "\n---\n".join(f"{PATHS[i]}:\n{body}\n" for i, body in enumerate(bodies))


def _mcp_with_failures(bodies: Sequence[str]) -> str:
    entries = [f"{PATHS[i]}:\n{body}\n" for i, body in enumerate(bodies)]
    return "\n---\n".join(["/gone.py: Error - no such file", *entries, "/also/gone: Error - not allowed"])


def _onyx(bodies: Sequence[str]) -> str:
    records = [{"document": 7 + i, "title": f"T{i}", "content": body} for i, body in enumerate(bodies)]
    return json.dumps({"results": records}, indent=4)


def _tavily(bodies: Sequence[str]) -> str:
    records = [
        {"title": "x", "url": f"https://m.example/{i}", "content": b, "score": 0.5} for i, b in enumerate(bodies)
    ]
    return json.dumps({"query": "rye?", "results": records, "response_time": 1.5}, ensure_ascii=False)


def _brave(bodies: Sequence[str]) -> str:
    return json.dumps({"url": "u", "title": "t", "description": bodies[0], "extra_snippets": []}, separators=(",", ":"))


def _codex_json(bodies: Sequence[str]) -> str:
    return json.dumps({"output": bodies[0], "metadata": {"exit_code": 0, "duration_seconds": 0.25}})


def _any_json(bodies: Sequence[str]) -> str:
    return json.dumps({"hits": {"pages": [{"path": f"p{i}", "text": body, "n": [1]} for i, body in enumerate(bodies)]}})


def _codex(bodies: Sequence[str]) -> str:
    return f"Exit code: 0\nWall time: 0.31 seconds\nOutput:\n{bodies[0]}"


def _codex_new(bodies: Sequence[str]) -> str:
    return f"Chunk ID: 9f\nWall time: 2.5 seconds\nProcess exited with code 0\nOutput:\n{bodies[0]}"


def _openhands(bodies: Sequence[str]) -> str:
    return (
        f"{bodies[0]}\n[The command completed with exit code 0.]\n[Current working directory: /w]\n"
        "[Python interpreter: /usr/bin/python]\n[Command finished with exit code 0]"
    )


def _cline(bodies: Sequence[str]) -> str:
    files = (f'<file_content path="{PATHS[i]}">\n{body}\n</file_content>' for i, body in enumerate(bodies))
    return "<task>\nWhy is the bread flat?\n</task>\n\n" + "\n\n".join(files) + "\n<environment_details>\nnow\n"


class Case(NamedTuple):
    """A format: who finds it, and how it is written.

    Attributes:
        most: how many bodies it can hold.
        quoted: texts that a body of it may hold without being cut there.
    """

    recogniser: Recogniser
    write: Callable[[Sequence[str]], str]
    most: int = 7
    role: Role = "tool"
    quoted: tuple[str, ...] = ()


CASES = {
    "langchain": Case(
        HeadRecogniser(LANGCHAIN_RETRIEVER_TOOL), _langchain, quoted=("\n\nSource: none\n", "\nContent: x", "\n\n\n")
    ),
    "librechat": Case(
        HeadRecogniser(LIBRECHAT_FILE_SEARCH), _librechat, quoted=("\n---\n", "\n\n---\nFile: a\n", "\n", "File: b")
    ),
    "tavily_mcp": Case(HeadRecogniser(TAVILY_MCP), _tavily_mcp, quoted=("\n\nTitle: a\n\n", "\nRaw Content: \n\nb")),
    "tavily_mcp_images": Case(HeadRecogniser(TAVILY_MCP), _tavily_mcp_images, quoted=("\n\nURL: c", "Images:\n")),
    "mcp_filesystem": Case(
        HeadRecogniser(MCP_FILESYSTEM), _mcp_filesystem, quoted=("\n---\n", "\n---\ntitle: x\n---\n", "z\n---\na.py:\n")
    ),
    "mcp_failures": Case(HeadRecogniser(MCP_FILESYSTEM), _mcp_with_failures, quoted=("\n---\n- one\n", "\n\n")),
    "onyx": Case(JsonRecogniser(ONYX), _onyx, quoted=('"', '{"content": "x"}', "\\", "\u00f8", "\U0001f35e")),
    "tavily_json": Case(JsonRecogniser(TAVILY), _tavily, quoted=('"}, {"', "\\u00f8", "\U0001f35e", "\x00")),
    "brave": Case(JsonRecogniser(BRAVE), _brave, most=1, quoted=('","', "\n")),
    "codex_json": Case(JsonRecogniser(CODEX_JSON), _codex_json, most=1, quoted=('"output": "', "\t")),
    "any_json": Case(AnyJsonRecogniser(), _any_json, quoted=("]", "\\\\")),
    "codex": Case(HeadRecogniser(CODEX), _codex, most=1, quoted=("\nOutput:\n", "Exit code: 1\n")),
    "codex_new": Case(HeadRecogniser(CODEX), _codex_new, most=1, quoted=("\n\n",)),
    "openhands": Case(CommandOutput(), _openhands, most=1, quoted=("\n[Current working directory: /a]\nmore",)),
    "cline": Case(FileContents(), _cline, role="user", quoted=("<file_content>", "\n\n", "<file_content path='q'>")),
}

WORDS = st.text("abc xyz.,\n", min_size=1, max_size=6).map(lambda text: f"x{text}x")


@st.composite
def bodies_of(draw: st.DrawFn, case: Case) -> list[str]:
    """Bodies with the texts that a format must not stumble over."""
    pieces = st.lists(WORDS | st.sampled_from(case.quoted), min_size=1, max_size=4)
    return draw(st.lists(pieces.map("".join).map(lambda text: f"b{text}e"), min_size=1, max_size=min(case.most, 5)))


def found(case: Case, text: str) -> tuple[Region, ...]:
    regions = case.recogniser.find(segment(text, case.role), NoEdges())
    check_regions(text, regions)
    return regions


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(st.data())
def test_bodies_are_found_and_replaced_in_place(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    bodies = data.draw(bodies_of(case))
    text = case.write(bodies)
    regions = found(case, text)
    assert [unit.text for region in regions for unit in region.units] == bodies
    assert not any(region.movable for region in regions)
    (region,) = regions
    at = data.draw(st.integers(0, len(bodies) - 1))
    words = '[Same as "bake.py"\nabove: C:\\x.]'
    slot = Slot(region.units[at].body, (written(words, region.literal),))
    replaced = apply(fill(len(text), [slot]), text)
    (after,) = found(case, replaced)
    assert [unit.text for unit in after.units] == [*bodies[:at], words, *bodies[at + 1 :]]
    if region.literal == "json":
        json.loads(replaced)


@pytest.mark.parametrize("name", CASES)
def test_no_other_role_and_nothing_sealed(name: str) -> None:
    case = CASES[name]
    bodies = ["First body.\n\nOf two parts.", "Second."][: case.most]
    text = case.write(bodies)
    assert found(case, text)
    assert not case.recogniser.find(segment(text, "assistant"), NoEdges())
    assert not case.recogniser.find(segment(text, "system"), NoEdges())
    check_recogniser(case.recogniser, text, bodies, case.role)


TOKENS = (
    *(
        "[",
        "]",
        "{",
        "}",
        '"',
        "\\",
        ",",
        ":",
        "-",
        "<",
        ">",
        "/",
        "=",
        " ",
        "\n",
        "\n\n",
        "\t",
        "a",
        "\0",
        "\udc80",
        "1\t",
    ),
    *(
        "Source: {",
        "}\nContent: ",
        "\n---\n",
        "---",
        "File: ",
        "Relevance: 0.5\n",
        "Title: ",
        "URL: ",
        ".py:\n",
        "Images:\n",
    ),
    *(
        '"content"',
        '"results": [',
        '"output": ',
        "Exit code: 0\n",
        "Output:\n",
        "[Python interpreter: ",
        "]\n",
        "\\u00",
    ),
    *('<file_content path="', '">\n', "\n</file_content>", ": Error - ", "Detailed Results:\n\n"),
)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(text=st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_no_text_raises(name: str, text: str) -> None:
    found(CASES[name], text)
    found(CASES[name], CASES[name].write(["one"]) + text)
    found(CASES[name], text + CASES[name].write(["one"]))


def test_labels_are_words_that_the_model_sees() -> None:
    for name, label in {
        "langchain": "{'file': '/srv/oven/bake.py', 'row': 0}",
        "librechat": "/srv/oven/bake.py",
        "mcp_filesystem": "/srv/oven/bake.py",
        "cline": "/srv/oven/bake.py",
        "onyx": "T0",
        "any_json": "p0",
        "tavily_mcp": "Hit 0",
        "codex": None,
    }.items():
        (region,) = found(CASES[name], CASES[name].write(["one"]))
        assert region.units[0].label == label, name


def test_a_list_of_unlike_records_is_no_run() -> None:
    text = json.dumps({"results": [{"document": 1, "content": "a"}, {"document": 2}]})
    assert not JsonRecogniser(ONYX).find(segment(text), NoEdges())
    assert not AnyJsonRecogniser().find(segment(text), NoEdges())
    assert not AnyJsonRecogniser().find(segment(json.dumps([{"text": "a"}, "b"])), NoEdges())


def test_a_record_without_text_is_no_unit() -> None:
    text = json.dumps([{"text": "a"}, {"text": None}, {"text": ""}, {"text": "d"}])
    (region,) = AnyJsonRecogniser().find(segment(text), NoEdges())
    assert [unit.text for unit in region.units] == ["a", "d"]


FILE = "import mill\n\n\ndef grind():\n    return 3"


def numbered(text: str, mark: str, first: int = 1, width: int = 0) -> str:
    return "\n".join(f"{first + i:>{width}}{mark}{line}" for i, line in enumerate(text.split("\n")))


@pytest.mark.parametrize(("mark", "first", "width"), [("\t", 1, 0), ("→", 1, 6), ("\t", 118, 5)])
@pytest.mark.parametrize("reminder", ["", "\n\n<system-reminder>\nBe careful.\n</system-reminder>\n"])
def test_files_with_numbered_lines(mark: str, first: int, width: int, reminder: str) -> None:
    body = numbered(FILE, mark, first, width)
    check_recogniser(NumberedLines(), body + reminder, [body], "tool")


@pytest.mark.parametrize("text", ["1\ta\n3\tb", "1\ta\nb", "1 a\n2 b", "", "x\t1", "1\ta\n2\tb\n"])
def test_what_has_no_rising_numbers_is_no_file(text: str) -> None:
    assert not NumberedLines().find(segment(text), NoEdges())


@pytest.mark.parametrize("role", ["tool", "user"])
def test_observations(role: Role) -> None:
    listing = f"OBSERVATION:\nHere's the result of running `cat -n` on /w/mill.py:\n{numbered(FILE, chr(9), 1, 6)}\n"
    check_recogniser(Observation(), listing, [listing], role)
    (region,) = Observation().find(segment(listing, role), NoEdges())
    assert region.units[0].label == "/w/mill.py"
    assert not Observation().find(segment("THOUGHT:\nx", role), NoEdges())


def test_a_file_of_openhands_is_one_unit_named_by_its_path() -> None:
    listing = f"Here's the result of running `cat -n` on /w/mill.py:\n{numbered(FILE, chr(9), 1, 6)}\n"
    (region,) = CommandOutput().find(segment(listing), NoEdges())
    assert region.units[0].label == "/w/mill.py"
    assert not CommandOutput().find(segment("plain words"), NoEdges())


def test_equal_outputs_are_equal_whatever_the_command_took() -> None:
    first, second = (
        HeadRecogniser(CODEX).find(segment(f"Exit code: 0\nWall time: {seconds} seconds\nOutput:\nok\n"), NoEdges())
        for seconds in (0.1, 9.5)
    )
    assert first[0].units[0].text == second[0].units[0].text == "ok\n"


def test_a_file_that_holds_the_closing_tag_is_a_doubt() -> None:
    tag = '<file_content path="a.xml">\n'
    assert not FileContents().find(segment(f"{tag}x\n</file_content>\ny\n</file_content>", "user"), NoEdges())
    assert not FileContents().find(segment(f"{tag}x", "user"), NoEdges())
    (region,) = FileContents().find(segment(f"{tag}\n</file_content>", "user"), NoEdges())
    assert region.units[0].text == ""


def test_a_part_that_names_the_next_one() -> None:
    texts = ["[read_file for 'src/mill.py'] Result:", FILE, "<environment_details>\n9:41\n</environment_details>"]
    segments = tuple(Segment(("messages", 4, "content", i, "text"), text, "user", 4) for i, text in enumerate(texts))
    message = Message("user", ("messages", 4), {}, segments)
    (result,) = results_in_parts(message)
    assert result.segment is segments[1]
    assert result.region.units[0].text == FILE
    assert result.region.units[0].label == "read_file for 'src/mill.py'"
    assert result.region.repeats == "repeat-only"


def test_a_whole_result() -> None:
    (region,) = WholeResult().find(segment("four loaves"), NoEdges())
    assert (region.units[0].text, region.repeats, region.movable) == ("four loaves", "repeat-only", False)
    assert not WholeResult().find(segment(""), NoEdges())
    assert not WholeResult().find(segment("four loaves", "user"), NoEdges())


def facts(*dates: str) -> str:
    records = [{"fact": f"Bakes {i} loaves.", "valid_at": day, "invalid_at": "Present"} for i, day in enumerate(dates)]
    return f"You know this user.\n<FACTS>\n    {json.dumps(records)}\n</FACTS>\n<ENTITIES>\n[]\n</ENTITIES>"


def test_dated_facts_are_found_and_left_alone() -> None:
    text = facts("2025-01-01", "2025-02-01")
    (region,) = ZepRecogniser().find(segment(text, "system"), NoEdges())
    assert [unit.text for unit in region.units] == ["Bakes 0 loaves.", "Bakes 1 loaves."]
    assert (region.movable, region.repeats) == (False, "no")
    check_recogniser(ZepRecogniser(), text, ["Bakes 0 loaves.", "Bakes 1 loaves."], "system")
    assert not ZepRecogniser().find(segment(text.replace("valid_at", "seen"), "system"), NoEdges())
    assert not ZepRecogniser().find(segment(text.replace("</FACTS>", ""), "system"), NoEdges())


HOSTILE = [
    "\n\nSource: {" * 20_000,
    "Source: {}\nContent: " + "\n\nSource: {x}" * 15_000,
    "a.b:\n" + "\n---\n" * 40_000,
    "\n---\na/b" * 30_000,
    "Exit code: 0\n" * 15_000,
    "[Current working directory: x]" * 7_000 + "y",
    '<file_content path="p">\n' * 8_000,
    "1\t\n" * 50_000,
    '{"results": ' + "[" * 100_000,
    "<FACTS> " * 25_000,
    " " * 200_000,
    "[x for '" * 25_000,
    '[{"text": "' + "\\u0041" * 30_000,
    "Answer: \n" * 25_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=[re.sub(r"\W+", " ", text[:24]) for text in HOSTILE])
def test_long_texts_made_to_be_slow(text: str) -> None:
    """At 200,000 characters anything but a linear pass takes minutes."""
    for case in CASES.values():
        found(case, text)
    for recogniser in (NumberedLines(), Observation(), ZepRecogniser(), WholeResult()):
        for role in ("tool", "user"):
            check_regions(text, recogniser.find(segment(text, "tool" if role == "tool" else "user"), NoEdges()))
    parts = tuple(Segment((i,), text, "user", 0) for i in range(2))
    assert len(list(results_in_parts(Message("user", (), None, parts)))) in (0, 1)
