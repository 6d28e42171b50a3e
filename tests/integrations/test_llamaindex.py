"""LlamaIndex as installed: the postprocessor in a query engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integrations.small_rag import DOCUMENTS, QUERIES, Query, missing, prefilled_tokens, prompts

from prefixpilot.testing import SimulatedEngine

pytestmark = pytest.mark.integrations
pytest.importorskip("llama_index.llms.openai_like", reason="run `make test-integrations`")

from llama_index.core.base.base_retriever import BaseRetriever  # noqa: E402
from llama_index.core.base.response.schema import Response  # noqa: E402
from llama_index.core.query_engine import RetrieverQueryEngine  # noqa: E402
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer  # noqa: E402
from llama_index.core.schema import ImageNode, MetadataMode, NodeWithScore, QueryBundle, TextNode  # noqa: E402
from llama_index.llms.openai_like import OpenAILike  # noqa: E402

from prefixpilot.adapters.llamaindex import PrefixPilotPostprocessor  # noqa: E402

BY_QUESTION = {query.question: query for query in QUERIES}


class Finder(BaseRetriever):
    """Finds what the small RAG says; nodes have a file's name in their metadata if asked for."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.named = named

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return nodes(BY_QUESTION[query_bundle.query_str], self.named)


def nodes(query: Query, named: bool = False) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(text=DOCUMENTS[n], id_=f"n{n}", metadata={"file": f"{{{n}}}.txt"} if named else {}),
            score=1 / (rank + 1),
        )
        for rank, n in enumerate(query.found)
    ]


def ask(engine: SimulatedEngine, *postprocessors: PrefixPilotPostprocessor, named: bool = False) -> list[Response]:
    llm = OpenAILike(
        api_base=f"{engine.base_url}/v1", api_key="unused", model="simulated", is_chat_model=True, context_window=32_000
    )
    made = RetrieverQueryEngine(
        Finder(named), get_response_synthesizer(llm, response_mode=ResponseMode.COMPACT), list(postprocessors)
    )
    return [made.query(query.question) for query in QUERIES]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("annotations", ["metadata", "text"])
def test_a_query_engine_prefills_less_with_the_same_evidence(annotations: Any, named: bool) -> None:
    with SimulatedEngine() as without:
        ask(without, named=named)
    with SimulatedEngine() as engine:
        ask(engine, PrefixPilotPostprocessor(annotations=annotations), named=named)
    assert missing(engine) == missing(without) == []
    assert len(engine.chats) == len(without.chats) == len(QUERIES)
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)
    assert any("priority order: [Doc " in prompt for prompt in prompts(engine)) == (annotations == "text")
    assert any("\n[Doc 1]\n" in prompt for prompt in prompts(engine)) == (annotations == "text")
    assert all("prefixpilot" not in prompt for prompt in prompts(engine))
    assert all(("file: {0}.txt" in prompt) == named for prompt in prompts(engine) if DOCUMENTS[0] in prompt)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("annotations", ["metadata", "text"])
def test_nodes_keep_what_they_are(annotations: Any, named: bool) -> None:
    processor = PrefixPilotPostprocessor(annotations=annotations)
    processor.postprocess_nodes(nodes(QUERIES[0], named))
    given, before = nodes(QUERIES[1], named), nodes(QUERIES[1], named)
    ordered = processor.postprocess_nodes(given, query_str="Q?")
    assert given == before
    ranks = [node.metadata["prefixpilot_rank"] for node in ordered]
    assert sorted(ranks) == [0, 1, 2, 3] and ranks != [0, 1, 2, 3]
    for rank, node in zip(ranks, ordered, strict=True):
        was = before[rank]
        assert (node.node.node_id, node.score) == (was.node.node_id, was.score)
        assert node.metadata.items() >= was.metadata.items()
        read = node.node.get_content(metadata_mode=MetadataMode.LLM)
        assert was.node.get_content(metadata_mode=MetadataMode.LLM) in read
        assert node.node.get_content(metadata_mode=MetadataMode.EMBED).count("prefixpilot") == 0


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="annotation"):
        PrefixPilotPostprocessor(annotation="text")


def test_a_node_without_text_stays() -> None:
    given = [NodeWithScore(node=ImageNode(image_url="http://127.0.0.1/a.png", id_="i")), *nodes(QUERIES[0])]
    ordered = PrefixPilotPostprocessor(annotations="text").postprocess_nodes(given)
    assert sorted(node.node.node_id for node in ordered) == ["i", "n0", "n1", "n2", "n3"]


def test_nothing_found_is_nothing() -> None:
    assert PrefixPilotPostprocessor().postprocess_nodes([]) == []
