"""Document trees: how they are read, what of them becomes blocks, and how sections are found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, RetrieverError
from prefixpilot.retrievers import Retrieved, Retriever
from prefixpilot.retrievers.document_tree import DocumentTree, Node, Section
from prefixpilot.retrievers.tree_search import DocumentTreeRetriever, word_scorer

MANUAL = """\
Read this first.

# Kettle
Boils water.

## Safety
Never open it while it boils.

```sh
# not a heading
```
### Children
Keep it out of reach.
## Cleaning ##
Use vinegar.
# Toaster
## Safety
Never use a fork.
"""


@pytest.fixture(scope="module")
def manual() -> DocumentTree:
    return DocumentTree.from_markdown(MANUAL)


def titles(found: Retrieved) -> list[str | None]:
    return [block.title for block in found.blocks]


def test_markdown_becomes_sections(manual: DocumentTree) -> None:
    assert [(node.id, node.path) for node in manual.nodes] == [
        ("1", ("",)),
        ("2", ("Kettle",)),
        ("2.1", ("Kettle", "Safety")),
        ("2.1.1", ("Kettle", "Safety", "Children")),
        ("2.2", ("Kettle", "Cleaning")),
        ("3", ("Toaster",)),
        ("3.1", ("Toaster", "Safety")),
    ]
    assert manual.nodes[2].text == "Never open it while it boils.\n\n```sh\n# not a heading\n```"
    assert [manual.nodes[place].id for place in manual.roots] == ["1", "2", "3"]
    assert [manual.nodes[place].id for place in manual.nodes[1].children] == ["2.1", "2.2"]


def test_a_section_is_a_block_under_its_path(manual: DocumentTree) -> None:
    assert manual.nodes[4].block == ContextBlock("Use vinegar.", id="2.2", title="Kettle > Cleaning")
    assert manual.nodes[0].block == ContextBlock("Read this first.", id="1")
    assert manual.nodes[5].block is None


def test_a_model_can_choose_from_the_outline() -> None:
    tree = DocumentTree(
        [Section("Tea", summary="hot", sections=(Section("Green", "Leaves."),)), Section("Rice", "Grain.")]
    )
    assert tree.outline() == "[1] Tea: hot\n  [1.1] Green\n[2] Rice"
    assert tree.blocks(["2", "1", "1.1"]) == (
        ContextBlock("Grain.", id="2", title="Rice"),
        ContextBlock("Leaves.", id="1.1", title="Tea > Green"),
    )
    with pytest.raises(InvalidRequestError, match=r"ids: '9' is no section; give ids that stand in outline\(\)"):
        tree.blocks(["9"])


def test_pageindex_is_read() -> None:
    structure = [
        {
            "title": "Report",
            "start_index": 1,
            "end_index": 4,
            "node_id": "0000",
            "prefix_summary": "All of it.",
            "nodes": [{"title": "Results", "node_id": "0001", "summary": "Figures.", "text": "It grew."}],
        }
    ]
    tree = DocumentTree.from_pageindex(structure)
    assert tree.nodes == (
        Node("0000", ("Report",), "All of it.", "", (1,)),
        Node("0001", ("Report", "Results"), "Figures.", "It grew.", ()),
    )
    for bad, message in (
        ({}, "structure: is dict; give a list of PageIndex nodes"),
        ([{"title": "A", "nodes": [{}]}], r"structure\[0\]\.nodes\[0\]: has no title; give a PageIndex node"),
        ([{"title": "A"}], "sections: have no text; give at least one section with a text"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            DocumentTree.from_pageindex(bad)  # type: ignore[arg-type]


def test_ids_are_unique() -> None:
    with pytest.raises(InvalidRequestError, match="sections: have an id twice"):
        DocumentTree([Section("A", "a", id="2"), Section("B", "b")])


def test_empty_documents() -> None:
    for text in ("", "\n \n", "# A\n## B\n"):
        with pytest.raises(InvalidRequestError, match="sections: have no text"):
            DocumentTree.from_markdown(text)


LINE = st.sampled_from(["# A", "## B", "### C", "#### D", "text", "more text", "", "#no heading", "```", "    # code"])


@given(st.lists(LINE, max_size=14).filter(lambda lines: any(line.endswith("text") for line in lines)))
def test_no_text_is_lost_and_none_comes_twice(lines: list[str]) -> None:
    tree = DocumentTree.from_markdown("\n".join(lines))
    kept = [line for node in tree.nodes for line in node.text.split("\n") if line.endswith("text")]
    assert kept == [line for line in lines if line.endswith("text")]
    for node in tree.nodes:
        assert all(tree.nodes[child].path[:-1] == node.path for child in node.children)
    reached = sorted([*tree.roots, *(child for node in tree.nodes for child in node.children)])
    assert reached == list(range(len(tree.nodes)))


def test_saved_and_loaded_it_is_the_same(manual: DocumentTree, tmp_path: Path) -> None:
    manual.save(tmp_path / "manual")
    assert DocumentTree.load(tmp_path / "manual").nodes == manual.nodes
    with pytest.raises(RetrieverError, match="cannot be read"):
        DocumentTree.load(tmp_path / "other")


# -- search


def test_sections_are_found_by_path_and_text(manual: DocumentTree) -> None:
    search = DocumentTreeRetriever(manual)
    assert titles(search.retrieve("safety of the toaster", 1)) == ["Toaster > Safety"]
    assert titles(search.retrieve("vinegar", 5)) == ["Kettle > Cleaning"]
    assert search.retrieve("penguin", 5) == Retrieved((), ())
    assert isinstance(search, Retriever)


def test_a_block_is_the_same_whatever_was_asked(manual: DocumentTree) -> None:
    search = DocumentTreeRetriever(manual)
    first, second = search.retrieve("kettle safety", 9), search.retrieve("never open", 9)
    assert set(second.blocks) & set(first.blocks)
    by_id = {block.id: block for block in first.blocks}
    assert all(by_id.get(block.id, block) == block for block in second.blocks)


def test_equal_scores_and_document_order(manual: DocumentTree) -> None:
    assert titles(DocumentTreeRetriever(manual).retrieve("safety", 5)) == [
        "Kettle > Safety",
        "Kettle > Safety > Children",
        "Toaster > Safety",
    ]
    found = DocumentTreeRetriever(manual, order="document").retrieve("never safety toaster", 2)
    assert titles(found) == ["Kettle > Safety", "Toaster > Safety"]
    assert found.scores[0] < found.scores[1]


def test_a_scorer_of_ones_own_walks_level_by_level(manual: DocumentTree) -> None:
    seen: list[list[str]] = []

    def by_letters(query: str, nodes: Sequence[Node]) -> list[float]:
        seen.append([node.id for node in nodes])
        return [float(query in node.path[0]) * len(node.path) for node in nodes]

    found = DocumentTreeRetriever(manual, by_letters, beam=1).retrieve("Kettle", 2)
    assert seen == [["1", "2", "3"], ["2.1", "2.2"], ["2.1.1"]]
    assert titles(found) == ["Kettle > Safety > Children", "Kettle > Safety"]
    assert found.scores == (3.0, 2.0)


def test_a_wide_beam_finds_what_all_sections_give(manual: DocumentTree) -> None:
    scorer = word_scorer(manual)

    def below_too(query: str, nodes: Sequence[Node]) -> list[float]:
        return [score + 0.01 for score in scorer(query, nodes)]

    queries = ["safety", "open water", "vinegar kettle"]
    everything = DocumentTreeRetriever(manual, below_too).retrieve_batch(queries, 9)
    assert DocumentTreeRetriever(manual, below_too, beam=9).retrieve_batch(queries, 9) == everything
    assert asyncio.run(DocumentTreeRetriever(manual, below_too).aretrieve_batch(queries, 9)) == everything


def test_sections_that_read_alike_are_one_block() -> None:
    tree = DocumentTree([Section("A", "tea"), Section("A", "tea"), Section("B", "tea")])
    for order in ("relevance", "document"):
        assert titles(DocumentTreeRetriever(tree, order=order).retrieve("tea", 9)) == ["A", "B"]


@pytest.mark.parametrize("given_scores", [[1.0], [[1.0]] * 7, [float("nan")] * 7, "abc", None])
def test_scorers_that_do_not_score(manual: DocumentTree, given_scores: Any) -> None:
    with pytest.raises(RetrieverError, match="the scorer gave"):
        DocumentTreeRetriever(manual, lambda query, nodes: given_scores).retrieve("tea", 1)


def test_bad_settings(manual: DocumentTree) -> None:
    with pytest.raises(ConfigError, match="order: is 'size'; give relevance or document"):
        DocumentTreeRetriever(manual, order="size")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="beam: is 0; give an int of 1 or more, or None"):
        DocumentTreeRetriever(manual, beam=0)
    with pytest.raises(InvalidRequestError, match="k: is 0"):
        DocumentTreeRetriever(manual).retrieve("tea", 0)
