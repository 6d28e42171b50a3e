"""Documents outside strings: they move where each has an id of its own in the prompt, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.apis.base import Message, Prompt
from prefixpilot.formats.arrays import ArrayRegion, find_arrays

DOCUMENTS: list[dict[str, Any]] = [
    {"doc_id": "mill.md", "text": "The mill grinds rye."},
    {"doc_id": 7, "text": "The weir is low.", "title": "W"},
]


def chat(**members: Any) -> Prompt:
    body = {"model": "ibm-granite/granite-3.3-8b-instruct", "documents": DOCUMENTS, **members}
    return Prompt("chat", body, (), -1, False)


def test_documents_with_ids_of_their_own_move() -> None:
    (region,) = find_arrays(chat())
    assert (region.format, region.pointer, region.size, region.movable) == ("documents", ("documents",), 2, True)
    assert described(region) == [(0, "The mill grinds rye.", "mill.md"), (1, "The weir is low.", "7")]


@pytest.mark.parametrize(
    "members",
    [
        {"model": "CohereForAI/c4ai-command-r-v01"},
        {"model": "ibm-granite/granite-3.2-8b-instruct"},
        {"model": "granite-3.30b"},
        {"model": None},
        {"chat_template": "{{ documents }}"},
        {"documents": DOCUMENTS[:1]},
        {"documents": [DOCUMENTS[0], DOCUMENTS[0]]},
        {"documents": [{"text": "a"}, {"text": "b"}]},
        {"documents": [{**DOCUMENTS[0], "rank": 1}, DOCUMENTS[1]]},
        {"documents": [{"doc_id": "a"}, {"doc_id": "b"}]},
        {"documents": ["a", "b"]},
        {"documents": [{"doc_id": True, "text": "a"}, {"doc_id": "b", "text": "b"}]},
    ],
)
def test_everything_else_stays(members: dict[str, Any]) -> None:
    (region,) = find_arrays(chat(**members))
    assert not region.movable
    assert [unit.index for unit in region.units] == list(range(region.size))


@pytest.mark.parametrize("documents", [None, [], "text", {"a": 1}])
def test_no_documents(documents: Any) -> None:
    assert find_arrays(chat(documents=documents)) == ()


def test_a_setting_names_further_models() -> None:
    prompt = chat(model="acme/Scribe-2")
    assert not find_arrays(prompt)[0].movable
    assert find_arrays(prompt, ["scribe-2"])[0].movable
    assert not find_arrays(prompt, [""])[0].movable


def test_equal_documents_are_equal_whatever_the_order_of_their_members() -> None:
    turned = [dict(reversed(document.items())) for document in DOCUMENTS]
    one, other = find_arrays(chat())[0], find_arrays(chat(documents=turned))[0]
    assert [unit.whole for unit in one.units] == [unit.whole for unit in other.units]


def described(region: ArrayRegion) -> list[tuple[int, str, str | None]]:
    return [(unit.index, unit.text, unit.label) for unit in region.units]


def messages(*contents: Any) -> Prompt:
    made = [Message("user", ("messages", i), {"role": "user", "content": c}, ()) for i, c in enumerate(contents)]
    return Prompt("messages", {"documents": DOCUMENTS, "model": "granite-3.3"}, tuple(made), 0, False)


def test_blocks_of_anthropic_are_found_and_never_move() -> None:
    plain = {
        "type": "document",
        "title": "Fees",
        "source": {"type": "text", "media_type": "text/plain", "data": "Ten."},
    }
    parts = {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
    }
    unread = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    hit = {
        "type": "search_result",
        "source": "m.example",
        "title": "Mill",
        "content": [{"type": "text", "text": "Rye."}],
    }
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, hit]}
    prompt = messages([plain, {"type": "text", "text": "Which?"}, parts, unread], "plain words", [result, hit])
    found = find_arrays(prompt)
    assert [(region.format, region.pointer, region.size) for region in found] == [
        ("anthropic_document_blocks", ("messages", 0, "content"), 4),
        ("anthropic_search_results", ("messages", 2, "content"), 2),
        ("anthropic_search_results", ("messages", 2, "content", 0, "content"), 2),
    ]
    assert not any(region.movable for region in found)
    assert [(unit.index, unit.text, unit.label) for unit in found[0].units] == [
        (0, "Ten.", "Fees"),
        (2, "a\nb", None),
        (3, "", None),
    ]
    assert [(unit.index, unit.text, unit.label) for unit in found[2].units] == [(1, "Rye.", "Mill")]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["document", "tool_result", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "source", "data", "text", "doc_id", "title"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_no_body_raises(content: Any, documents: Any) -> None:
    find_arrays(messages(content))
    find_arrays(chat(documents=documents))
    find_arrays(Prompt("responses", {}, (), -1, False))
