"""LangChain as installed: the compressor in a chain, the middleware in an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.integrations.small_rag import (
    DOCUMENTS,
    QUERIES,
    assert_one_conversation,
    found,
    missing,
    prefilled_tokens,
    prompts,
)

from prefixpilot import ContextPilot
from prefixpilot.errors import ConfigError
from prefixpilot.testing import SimulatedCall, SimulatedEngine, SimulatedReply

pytestmark = pytest.mark.integrations
pytest.importorskip("langchain_openai", reason="run `make test-integrations`")

from langchain.agents import create_agent  # noqa: E402
from langchain.agents.middleware import AgentMiddleware  # noqa: E402
from langchain_classic.retrievers import ContextualCompressionRetriever  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.messages import HumanMessage, RemoveMessage, ToolMessage  # noqa: E402
from langchain_core.prompts import ChatPromptTemplate  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402
from langchain_core.tools import create_retriever_tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402

from prefixpilot.adapters.langchain import PrefixPilotCompressor, format_documents  # noqa: E402
from prefixpilot.adapters.langchain_agents import PrefixPilotMiddleware  # noqa: E402

BY_QUESTION = {query.question: query for query in QUERIES}
PROMPT = ChatPromptTemplate.from_template("Answer from the context.\n\n{context}\n\n{question}")


class Finder(BaseRetriever):
    """Finds what the small RAG says."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        known = BY_QUESTION[query]
        return [Document(t, id=str(n), metadata={"page": n}) for n, t in zip(known.found, found(known), strict=True)]


def model(engine: SimulatedEngine) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{engine.base_url}/v1", api_key="unused", model="simulated", max_retries=0)


# -- compressor


def ask(engine: SimulatedEngine, retriever: BaseRetriever) -> None:
    for query in QUERIES:
        context = "\n\n".join(document.page_content for document in retriever.invoke(query.question))
        (PROMPT | model(engine)).invoke({"context": context, "question": query.question})


@pytest.mark.parametrize("annotations", ["metadata", "text"])
def test_a_chain_prefills_less_with_the_same_evidence(annotations: Any) -> None:
    with SimulatedEngine() as without:
        ask(without, Finder())
    compressor = PrefixPilotCompressor(annotations=annotations)
    with SimulatedEngine() as engine:
        ask(engine, ContextualCompressionRetriever(base_compressor=compressor, base_retriever=Finder()))
    assert missing(engine) == missing(without) == []
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)
    annotated = [prompt for prompt in prompts(engine) if "priority order: [Doc " in prompt]
    assert bool(annotated) == (annotations == "text")
    assert any("[Doc 1]\n" in prompt for prompt in prompts(engine)) == (annotations == "text")


def test_documents_keep_what_they_are() -> None:
    compressor = PrefixPilotCompressor()
    compressor.compress_documents(Finder().invoke(QUERIES[0].question), "")
    given = Finder().invoke(QUERIES[1].question)
    before = [document.model_copy(deep=True) for document in given]
    ordered = compressor.compress_documents(given, "")
    assert given == before
    ranks = [document.metadata["prefixpilot_rank"] for document in ordered]
    assert sorted(ranks) == [0, 1, 2, 3] and ranks != [0, 1, 2, 3]
    for rank, document in zip(ranks, ordered, strict=True):
        assert document.page_content == before[rank].page_content and document.id == before[rank].id
        assert document.metadata.items() >= before[rank].metadata.items()


@pytest.mark.parametrize("annotations", ["metadata", "text"])
def test_format_documents_tells_the_ranking_once(annotations: Any) -> None:
    compressor = PrefixPilotCompressor(annotations=annotations)
    compressor.compress_documents(Finder().invoke(QUERIES[0].question), "")
    text = format_documents(compressor.compress_documents(Finder().invoke(QUERIES[1].question), ""))
    assert text.startswith(f"[Doc 1]\n{DOCUMENTS[0]}\n\n[Doc 2]\n{DOCUMENTS[1]}")
    assert text.count("priority order: [Doc 3] > [Doc 1] > [Doc 4] > [Doc 2]") == 1
    assert text.count("[Doc 1]\n") == 1


def test_twice_the_same_document_stays_twice() -> None:
    twice = [Document("Same."), Document("Other."), Document("Same.")]
    ordered = PrefixPilotCompressor(annotations="text").compress_documents(twice, "")
    assert sorted(document.page_content for document in ordered) == [
        "[Doc 1]\nSame.",
        "[Doc 1]\nSame.",
        "[Doc 2]\nOther.",
    ]


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="annotation"):
        PrefixPilotCompressor(annotation="text")


def test_nothing_found_is_nothing() -> None:
    assert PrefixPilotCompressor().compress_documents([], "Q?") == []
    assert format_documents([]) == ""


def test_adapters_share_a_pilot() -> None:
    pilot = ContextPilot()
    PrefixPilotCompressor(pilot=pilot).compress_documents(Finder().invoke(QUERIES[0].question), "")
    ordered = PrefixPilotCompressor(pilot=pilot).compress_documents(Finder().invoke(QUERIES[1].question), "")
    assert [document.metadata["prefixpilot_rank"] for document in ordered] == [1, 3, 0, 2]


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="annotations"):
        PrefixPilotCompressor(annotations="somewhere")


# -- agents


def searching(body: Mapping[str, Any]) -> SimulatedReply:
    """Searches for the user's words, then answers."""
    last = body["messages"][-1]
    if last["role"] != "user" or not body.get("tools"):
        return SimulatedReply("As it says there.")
    words = last["content"].rpartition("\n\n")[2]
    return SimulatedReply(calls=(SimulatedCall(f"call_{len(body['messages'])}", "search", f'{{"query": "{words}"}}'),))


def agent(engine: SimulatedEngine, *middleware: AgentMiddleware[Any, Any], tool: bool = True, **more: Any) -> Any:
    tools = [create_retriever_tool(Finder(), "search", "Searches.", response_format="content_and_artifact")]
    return create_agent(model(engine), tools if tool else [], middleware=middleware, **more)


def converse(agent: Any) -> Any:
    """All questions in one thread; the state at the end."""
    for query in QUERIES:
        state = agent.invoke({"messages": [HumanMessage(query.question)]}, {"configurable": {"thread_id": "t"}})
    return state


def test_a_tool_that_finds_the_same_again_is_not_read_twice() -> None:
    with SimulatedEngine(reply=searching) as without:
        converse(agent(without, checkpointer=InMemorySaver()))
    with SimulatedEngine(reply=searching) as engine:
        converse(agent(engine, PrefixPilotMiddleware(), checkpointer=InMemorySaver()))
    assert len(engine.chats) == len(without.chats) == 2 * len(QUERIES)
    assert prefilled_tokens(engine) < 0.5 * prefilled_tokens(without)
    assert_one_conversation(engine, 2 * len(QUERIES))
    assert "Please refer to [Doc 3] in the previous conversation." in prompts(engine)[-1]


def test_documents_for_each_question() -> None:
    with SimulatedEngine() as engine:
        made = agent(engine, PrefixPilotMiddleware(Finder()), tool=False)
        for query in QUERIES:
            made.invoke({"messages": [HumanMessage(query.question)]})
    with SimulatedEngine() as without:
        made = agent(without, tool=False)
        for query in QUERIES:
            made.invoke({"messages": [HumanMessage("\n\n".join([*found(query), query.question]))]})
    assert missing(engine) == missing(without) == []
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)


async def aconverse(agent: Any) -> Any:
    for query in QUERIES:
        message = {"messages": [HumanMessage(query.question)]}
        state = await agent.ainvoke(message, {"configurable": {"thread_id": "t"}})
    return state


@pytest.mark.parametrize("asynchronous", [False, True])
def test_documents_of_a_conversation_are_sent_once(asynchronous: bool) -> None:
    with SimulatedEngine() as engine:
        made = agent(engine, PrefixPilotMiddleware(Finder()), tool=False, checkpointer=InMemorySaver())
        state = asyncio.run(aconverse(made)) if asynchronous else converse(made)
    assert_one_conversation(engine)
    own = [m.content for m in state["messages"] if isinstance(m, HumanMessage)]
    assert own == [query.question for query in QUERIES], "the agent's own messages stay as they are"
    assert "prefixpilot_forms" not in state


def test_threads_do_not_see_each_other() -> None:
    with SimulatedEngine() as engine:
        made = agent(engine, PrefixPilotMiddleware(Finder()), tool=False, checkpointer=InMemorySaver())
        for thread in ("a", "b"):
            made.invoke({"messages": [HumanMessage(QUERIES[0].question)]}, {"configurable": {"thread_id": thread}})
        first, second = prompts(engine)
    assert first == second


def test_where_the_history_is_cut_documents_stand_in_full_again() -> None:
    with SimulatedEngine(reply=searching) as engine:
        made = agent(engine, PrefixPilotMiddleware(), checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        for query in QUERIES[:2]:
            state = made.invoke({"messages": [HumanMessage(query.question)]}, config)
        first = next(m for m in state["messages"] if isinstance(m, ToolMessage))
        caller = state["messages"][state["messages"].index(first) - 1]
        made.update_state(config, {"messages": [RemoveMessage(first.id), RemoveMessage(caller.id)]})
        made.invoke({"messages": [HumanMessage(QUERIES[2].question)]}, config)
        cut = prompts(engine)[-1]
    assert all(DOCUMENTS[n] in cut for n in {*QUERIES[1].found, *QUERIES[2].found})


def test_an_edited_message_gets_documents_of_its_own() -> None:
    with SimulatedEngine() as engine:
        made = agent(engine, PrefixPilotMiddleware(Finder()), tool=False, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        state = made.invoke({"messages": [HumanMessage(QUERIES[0].question, id="q")]}, config)
        made.update_state(config, {"messages": [RemoveMessage(state["messages"][-1].id)]})
        made.invoke({"messages": [HumanMessage(QUERIES[4].question, id="q")]}, config)
    assert missing(engine, [QUERIES[0], QUERIES[4]]) == []
    assert QUERIES[0].question not in prompts(engine)[-1]
