"""Elasticsearch and OpenSearch by their official clients, over the wire of their documented APIs.

The server is a stub (:mod:`tests.retrievers.search_stub`). ``PREFIXPILOT_ES_URL`` and ``PREFIXPILOT_OPENSEARCH_URL``
name real ones, on which the last tests run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch, Elasticsearch
from elasticsearch import __version__ as client_version
from opensearchpy import AsyncOpenSearch, OpenSearch
from tests.retrievers.search_stub import SearchStub, serve

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, RetrieverError
from prefixpilot.retrievers import AsyncRetriever, Retrieved, Retriever
from prefixpilot.retrievers.elasticsearch import ElasticsearchRetriever
from prefixpilot.retrievers.opensearch import OpenSearchRetriever
from prefixpilot.retrievers.search_server import SearchServerRetriever, SearchSettings

TOWN: list[str | ContextBlock] = [
    ContextBlock("The library opens at ten on Saturdays.", id="b"),
    ContextBlock("The pool opens at seven every day.", id="a", title="Swimming"),
    ContextBlock("The museum is closed on Mondays.", id=7),
]
SETTINGS = SearchSettings("town")
CLIENT = client_version[0]
OPTIONS: dict[str, Any] = {"max_retries": 0}


def texts(found: Retrieved) -> list[str]:
    return [block.text or "" for block in found.blocks]


@pytest.fixture(params=["elasticsearch", "opensearch"])
def stub(request: pytest.FixtureRequest) -> Iterator[SearchStub]:
    version = 9 if request.param == "elasticsearch" else 3
    with serve(SearchStub(request.param, version)) as running:
        yield running


@pytest.fixture
def retriever(stub: SearchStub) -> Iterator[SearchServerRetriever]:
    with ExitStack() as clients:
        yield made(stub, clients)


def made(
    stub: SearchStub, clients: ExitStack, settings: SearchSettings = SETTINGS, **options: Any
) -> SearchServerRetriever:
    if stub.product == "elasticsearch":
        client = clients.enter_context(Elasticsearch(stub.url, **OPTIONS, **options))
        return ElasticsearchRetriever(settings, client)
    return OpenSearchRetriever(settings, clients.enter_context(OpenSearch(stub.url, **OPTIONS, **options)))


def asynchronous(stub: SearchStub) -> tuple[SearchServerRetriever, Any]:
    if stub.product == "elasticsearch":
        client = AsyncElasticsearch(stub.url, **OPTIONS)
        return ElasticsearchRetriever(SETTINGS, async_client=client), client
    other = AsyncOpenSearch(stub.url, **OPTIONS)
    return OpenSearchRetriever(SETTINGS, async_client=other), other


def test_what_is_indexed_is_found(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    assert retriever.index_documents(TOWN) == 3
    assert stub.indices["town"]["a"] == {"title": "Swimming", "text": "The pool opens at seven every day."}
    found = retriever.retrieve("pool opens", 2)
    assert found.blocks == (
        ContextBlock("The pool opens at seven every day.", id="a", title="Swimming"),
        ContextBlock("The library opens at ten on Saturdays.", id="b"),
    )
    assert found.scores == (2.0, 1.0)
    ids = [block.id for block in retriever.retrieve("swimming museum", 5).blocks]
    assert ids == ["7", "a"]  # a server's ids are texts
    assert retriever.retrieve("penguins", 5) == Retrieved((), ())
    assert isinstance(retriever, Retriever) and isinstance(retriever, AsyncRetriever)


def test_what_goes_over_the_wire(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    retriever.index_documents(["tea"])
    retriever.retrieve_batch(["tea", "rice"], 3)
    put = next(body for method, path, body in stub.seen if (method, path) == ("PUT", "/town"))
    assert put == {"mappings": {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}}
    assert [path for _, path, _ in stub.seen[-3:-1]] == ["/_bulk", "/town/_refresh"]
    method, path, lines = stub.seen[-1]
    assert (method, path) == ("POST", "/_msearch")
    assert lines[0] == lines[2] == {"index": "town", "preference": "prefixpilot"}
    wanted = {"size": 3, "_source": ["title", "text"]}
    assert lines[3] == {**wanted, "query": {"multi_match": {"query": "rice", "fields": ["title", "text"]}}}


def test_indexing_twice_changes_nothing(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    retriever.index_documents(["tea", "rice", "tea"])
    before = dict(stub.indices["town"])
    assert len(before) == 2
    retriever.index_documents(["rice", "tea"], progress=True)
    assert stub.indices["town"] == before
    assert sum(path == "/town" and method == "PUT" for method, path, _ in stub.seen) == 1


def test_of_equal_scores_the_lower_id_comes_first(retriever: SearchServerRetriever) -> None:
    retriever.index_documents([ContextBlock(f"tea {name}", id=name) for name in "zkbxa"])
    assert [block.id for block in retriever.retrieve("tea", 5).blocks] == ["a", "b", "k", "x", "z"]


def test_equal_texts_are_one_block(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.indices["town"] = {"1": {"text": "tea"}, "2": {"text": "tea"}, "3": {"text": "tea", "title": "T"}}
    assert [block.id for block in retriever.retrieve("tea", 5).blocks] == ["1", "3"]


def test_many_queries_are_few_requests(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    retriever.index_documents([f"number {n}" for n in range(250)])
    queries = [f"{n}" for n in range(250)]
    before = len(stub.seen)
    found = retriever.retrieve_batch(queries, 1)
    assert [texts(one) for one in found] == [[f"number {n}"] for n in range(250)]
    assert len(stub.seen) - before == 3
    assert retriever.retrieve_batch([], 1) == []


def test_asynchronous_natively_and_in_a_thread(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    retriever.index_documents(TOWN)
    native, client = asynchronous(stub)

    async def both() -> tuple[list[Retrieved], list[Retrieved]]:
        try:
            return await native.aretrieve_batch(["pool", "on"], 2), await retriever.aretrieve_batch(["pool", "on"], 2)
        finally:
            await client.close()

    first, second = asyncio.run(both())
    assert first == second == retriever.retrieve_batch(["pool", "on"], 2)
    with pytest.raises(ConfigError, match="client: is not given; give one, or use the asynchronous methods"):
        native.retrieve("pool", 1)


def test_other_fields_and_another_search(stub: SearchStub) -> None:
    stub.indices["wiki"] = {"1": {"page": {"body": ["tea", "leaves"]}}, "2": {"page.body": "rice"}}

    def newest(query: str, k: int) -> dict[str, Any]:
        return {"query": {"match_all": {}}, "sort": ["date"], "size": k + 1}

    settings = SearchSettings("wiki", text="page.body", title=None, search=newest)
    with ExitStack() as clients:
        found = made(stub, clients, settings).retrieve("tea", 5)
    assert found == Retrieved((ContextBlock("tea\nleaves", id="1"), ContextBlock("rice", id="2")), (1.0, 0.5))
    assert stub.seen[-1][2][1] == {"_source": ["page.body"], "query": {"match_all": {}}, "size": 6, "sort": ["date"]}


# -- what can go wrong


def told(retriever: SearchServerRetriever, k: int = 1) -> str:
    with pytest.raises(RetrieverError) as failed:
        retriever.retrieve("tea", k)
    return str(failed.value).replace("OpenSearch", "Elasticsearch")


def test_no_such_index(retriever: SearchServerRetriever) -> None:
    assert told(retriever) == (
        "Elasticsearch refused with status 404 (index_not_found_exception: no such index [town]); "
        "index documents first, or name an index that is there"
    )


def test_k_above_what_the_server_gives(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.indices["town"] = {}
    assert "(illegal_argument_exception: Result window is too large" in told(retriever, 10_001)


def test_no_credentials(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.key = "ApiKey secret"
    assert "refused with status 401 (security_exception: missing auth" in told(retriever)
    assert told(retriever).endswith("give the client credentials that may read the index")


def test_an_answer_in_part_is_none(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.indices["town"] = {}
    stub.failed_shards = 2
    assert told(retriever).startswith("Elasticsearch answered in part (2 of 5 shards failed); look at its log")
    stub.failed_shards, stub.timed_out = 0, True
    assert told(retriever).startswith("Elasticsearch answered in part (0 of 5")


def test_a_document_without_text(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.indices["town"] = {"1": {"title": "tea"}}
    assert told(retriever) == (
        "document 1 of town has no text in the field 'text'; name the field in SearchSettings(text=...)"
    )


def test_a_document_that_is_refused(stub: SearchStub, retriever: SearchServerRetriever) -> None:
    stub.refuse_ids = frozenset("7")
    with pytest.raises(
        RetrieverError, match=r"document 7 was not indexed: .*\(document_parsing_exception: \[1:9\] failed"
    ):
        retriever.index_documents(TOWN)


@pytest.mark.parametrize("product", ["elasticsearch", "opensearch"])
def test_a_server_that_is_down(product: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        stub = SearchStub(product, url=f"http://127.0.0.1:{held.getsockname()[1]}")
        with ExitStack() as clients:
            retriever = made(stub, clients)
            assert told(retriever).startswith("Elasticsearch did not answer (")
            assert told(retriever).endswith("; start it, or mend the address of the client")
            with pytest.raises(RetrieverError, match="did not answer"):
                retriever.index_documents(["tea"])
        native, client = asynchronous(stub)

        async def ask() -> None:
            try:
                await native.aretrieve("tea", 1)
            finally:
                await client.close()

        with pytest.raises(RetrieverError, match="did not answer"):
            asyncio.run(ask())


def test_an_older_elasticsearch_than_the_client() -> None:
    with serve(SearchStub(version=CLIENT - 1)) as stub, ExitStack() as clients:
        assert "(media_type_header_exception: " in told(made(stub, clients))
        assert told(made(stub, clients)).endswith("; install a client of the server's major version, or an older one")


def test_another_product_than_elasticsearch() -> None:
    with serve(SearchStub("opensearch", 9)) as stub, Elasticsearch(stub.url, **OPTIONS) as client:
        retriever = ElasticsearchRetriever(SETTINGS, client)
        assert told(retriever).startswith("what answered is no Elasticsearch; use ")


def test_answers_that_are_none(
    stub: SearchStub, retriever: SearchServerRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(method: str, path: str, headers: object, body: object) -> tuple[int, Any]:
        return 200, {"responses": []}

    monkeypatch.setattr(stub, "answer", nothing)
    assert "gave an answer that cannot be read (ValueError: 0 answers to 1 searches)" in told(retriever)


def test_bad_input(retriever: SearchServerRetriever) -> None:
    with pytest.raises(InvalidRequestError, match="documents: is empty"):
        retriever.index_documents([])
    with pytest.raises(InvalidRequestError, match="k: is 0"):
        retriever.retrieve("tea", 0)
    with pytest.raises(ConfigError, match="client: is not given; give the official client, or its asynchronous form"):
        ElasticsearchRetriever(SETTINGS)
    with pytest.raises(ConfigError, match=r"SearchSettings\.index: is ''; give a non-empty str"):
        SearchSettings("")


# -- real servers


@pytest.mark.parametrize("product", ["elasticsearch", "opensearch"])
def test_on_a_real_server(product: str) -> None:
    url = os.environ.get({"elasticsearch": "PREFIXPILOT_ES_URL", "opensearch": "PREFIXPILOT_OPENSEARCH_URL"}[product])
    if url is None:
        pytest.skip("no server is named")
    index = f"prefixpilot-test-{uuid.uuid4().hex}"
    client: Any = Elasticsearch(url) if product == "elasticsearch" else OpenSearch(url)
    kind: Any = ElasticsearchRetriever if product == "elasticsearch" else OpenSearchRetriever
    retriever = kind(SearchSettings(index), client)
    assert "no such index" in told(retriever)
    try:
        assert retriever.index_documents(TOWN) == 3
        found = retriever.retrieve_batch(["swimming pool", "museum mondays", "penguins"], 2)
        assert [texts(one)[:1] for one in found[:2]] == [[TOWN[1].text], [TOWN[2].text]]  # type: ignore[union-attr]
        assert found[2] == Retrieved((), ())
        assert retriever.retrieve_batch(["swimming pool"], 2) == found[:1]
    finally:
        client.indices.delete(index=index)
        client.close()
