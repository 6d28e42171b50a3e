"""FAISS by embeddings: what is found, in which order, and how an index is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, RetrieverError
from prefixpilot.retrievers import AsyncRetriever, Retrieved, Retriever
from prefixpilot.retrievers.embedding import local_embedder
from prefixpilot.retrievers.faiss import FaissRetriever

TOWN: list[str | ContextBlock] = [
    "The library opens at ten on Saturdays.",
    "The swimming pool opens at seven every day.",
    ContextBlock("Trams run every ten minutes until midnight.", id="tram", title="Night lines"),
    "The museum is closed on Mondays.",
]


def letters(texts: Sequence[str]) -> NDArray[np.float64]:
    """How often each of a to z stands in a text: an embedding that can be worked out by hand."""
    return np.array([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], dtype=np.float64)


def scattered(texts: Sequence[str]) -> NDArray[np.float32]:
    """16 numbers from each text's hash."""
    rows = [np.frombuffer(blake2b(text.encode(), digest_size=16).digest(), dtype=np.uint8) for text in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 16) - 128


def texts(found: Retrieved) -> list[str]:
    return [block.text or "" for block in found.blocks]


@pytest.fixture(scope="module")
def town() -> FaissRetriever:
    return FaissRetriever.build(TOWN)


def test_it_finds_by_meaning_with_the_local_model(town: FaissRetriever) -> None:
    assert texts(town.retrieve("Where can I swim in the morning?", 1)) == [TOWN[1]]
    assert texts(town.retrieve("When can I borrow books?", 1)) == [TOWN[0]]
    assert town.retrieve("last ride home by streetcar in the evening", 4).blocks[0] is TOWN[2]


def test_scores_are_cosines(town: FaissRetriever) -> None:
    found = FaissRetriever.build(["aab", "b", "zz"], letters).retrieve("ab", 3)
    assert texts(found) == ["aab", "b", "zz"]
    assert found.scores == pytest.approx([3 / np.sqrt(10), 1 / np.sqrt(2), 0])


def test_fewer_than_k_where_there_are_no_more(town: FaissRetriever) -> None:
    assert len(town.retrieve("swim", 100).blocks) == 4


def test_what_has_no_embedding_finds_nothing(town: FaissRetriever) -> None:
    assert town.retrieve(" ", 3) == Retrieved((), ())
    assert FaissRetriever.build(["a"], letters).retrieve("123", 1) == Retrieved((), ())


def test_one_and_many_async_and_not_are_the_same(town: FaissRetriever) -> None:
    queries = [f"question {n} about {word}" for n in range(20) for word in ("books", "trams", "water")]
    many = town.retrieve_batch(queries, 2)
    assert many == [town.retrieve(query, 2) for query in queries]
    assert asyncio.run(town.aretrieve_batch(queries, 2)) == many
    assert town.retrieve_batch([], 2) == []
    assert isinstance(town, Retriever) and isinstance(town, AsyncRetriever)


@pytest.mark.parametrize("before", [0, 1, 40])
def test_equal_scores_keep_the_order_of_the_corpus(before: int) -> None:
    """Also where more are equal than were asked for, and where they are all of them."""
    corpus = ["b" * (n + 1) + "c" for n in range(before)] + [f"a{n}" for n in range(200)]
    found = FaissRetriever.build(corpus, letters).retrieve("a", 5)
    assert texts(found) == ["a0", "a1", "a2", "a3", "a4"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=80, unique=True),
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=25),
    st.integers(1, 40),
)
def test_it_is_the_sorted_list_of_cosines(corpus: list[str], queries: list[str], k: int) -> None:
    found = FaissRetriever.build(corpus, letters).retrieve_batch(queries, k)
    rows = letters(corpus) / np.linalg.norm(letters(corpus), axis=1, keepdims=True)
    for query, result in zip(queries, found, strict=True):
        vector = letters([query])[0]
        cosines = rows @ vector / np.linalg.norm(vector)
        order = np.lexsort((np.arange(len(corpus)), -np.round(cosines, 6)))[:k]
        assert texts(result) == [corpus[i] for i in order]
        assert result.scores == pytest.approx(cosines[order], abs=1e-6)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF8,Flat", "SQ8", "PCA14,Flat"])
def test_other_kinds_of_index(factory: str, tmp_path: Path) -> None:
    corpus = [f"document {n}" for n in range(400)]
    index = FaissRetriever.build(corpus, scattered, factory=factory)
    queries = corpus[::40]
    found = index.retrieve_batch(queries, 3)
    assert sum(texts(each)[0] == query for query, each in zip(queries, found, strict=True)) >= 8
    index.save(tmp_path / "i")
    assert FaissRetriever.load(tmp_path / "i", scattered).retrieve_batch(queries, 3) == found


# -- on disk


def test_saved_and_loaded_it_finds_the_same(town: FaissRetriever, tmp_path: Path) -> None:
    town.save(tmp_path / "town")
    loaded = FaissRetriever.load(tmp_path / "town")
    assert loaded.blocks == town.blocks
    assert loaded.retrieve_batch(["swim", "tram", ""], 3) == town.retrieve_batch(["swim", "tram", ""], 3)


def test_an_embedder_of_another_dimension_is_refused(town: FaissRetriever, tmp_path: Path) -> None:
    town.save(tmp_path / "town")
    with pytest.raises(
        RetrieverError, match="the embedder gives 26 dimensions and the index has 256; use the embedder"
    ):
        FaissRetriever.load(tmp_path / "town", letters)


def test_another_model_of_the_same_dimension_is_refused(tmp_path: Path) -> None:
    FaissRetriever.build(["tea"], letters).save(tmp_path / "i")
    with pytest.raises(RetrieverError, match="was built with another embedding model"):
        FaissRetriever.load(tmp_path / "i", lambda texts: letters(texts)[:, ::-1])


def test_a_model_that_rounds_otherwise_is_the_same(tmp_path: Path) -> None:
    FaissRetriever.build(["tea"], letters).save(tmp_path / "i")
    loaded = FaissRetriever.load(tmp_path / "i", lambda texts: letters(texts).astype(np.float16) * 3)
    assert texts(loaded.retrieve("tea", 1)) == ["tea"]


# -- bad input


@pytest.mark.parametrize(
    ("embed", "message"),
    [
        (lambda texts: np.zeros((len(texts) + 1, 4)), "gave an array of float64 of shape (3, 4) for 2 texts"),
        (lambda texts: np.zeros(4), "of shape (4,) for 2 texts; it has to give floats of shape (2, dimension)"),
        (lambda texts: np.zeros((len(texts), 0)), "of shape (2, 0) for 2 texts"),
        (lambda texts: np.zeros((len(texts), 4), dtype=int), "gave an array of int64"),
        (lambda texts: np.full((len(texts), 4), np.nan), "gave numbers that are not finite"),
    ],
)
def test_what_an_embedder_must_not_give(embed: Any, message: str) -> None:
    with pytest.raises(RetrieverError) as refused:
        FaissRetriever.build(["tea", "rice"], embed)
    assert message in str(refused.value)


def test_dimensions_that_change() -> None:
    def growing(texts: Sequence[str]) -> NDArray[np.float64]:
        return np.ones((len(texts), 3 if "tea" in texts else 5))

    with pytest.raises(RetrieverError, match=r"gave rows of \[3, 5\] dimensions; it has to keep to one"):
        FaissRetriever.build(["tea", "rice"], growing, at_once=1)
    with pytest.raises(RetrieverError, match="the embedder gives 5 dimensions and the index has 3"):
        FaissRetriever.build(["tea"], growing).retrieve("rice", 1)


def test_settings_and_queries_that_cannot_be_used(town: FaissRetriever) -> None:
    with pytest.raises(ConfigError, match="factory: 'Sieve' cannot be used here"):
        FaissRetriever.build(["tea"], letters, factory="Sieve")
    with pytest.raises(ConfigError, match="factory: 'IVF64,Flat' cannot be used here"):
        FaissRetriever.build(["tea"], letters, factory="IVF64,Flat")
    with pytest.raises(ConfigError, match="at_once: is 0"):
        FaissRetriever.build(["tea"], letters, at_once=0)
    with pytest.raises(InvalidRequestError, match="documents: is empty"):
        FaissRetriever.build([], letters)
    with pytest.raises(InvalidRequestError, match="k: is -1"):
        town.retrieve("tea", -1)


# -- the local model


def test_the_local_model_gives_equal_rows_whatever_stands_beside() -> None:
    embed = local_embedder()
    sentences = [f"{'word ' * n}and the sea number {n}" for n in range(1, 40)]
    together = embed(sentences)
    assert together.shape == (39, 256) and together.dtype == np.float32
    for sentence, row in zip(sentences, together, strict=True):
        assert (embed([sentence])[0] == row).all()
    assert not embed(["", " \n"]).any()


def test_loading_it_leaves_the_logging_of_the_program_alone() -> None:
    import subprocess
    import sys

    code = (
        "import logging; from prefixpilot.retrievers.embedding import local_embedder; local_embedder()(['tea']);"
        "assert (logging.getLogger().handlers, logging.getLogger().level) == ([], logging.WARNING)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")
