"""BM25 by words: what is found, in which order, and how an index is kept."""

from __future__ import annotations

import asyncio
import math
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, RetrieverError
from prefixpilot.retrievers import AsyncRetriever, Retrieved, Retriever
from prefixpilot.retrievers.bm25 import BM25Retriever, Words

TOWN: list[str | ContextBlock] = [
    "The library opens at ten on Saturdays.",
    "The swimming pool opens at seven every day.",
    ContextBlock("Trams run every ten minutes until midnight.", id="tram", title="Night lines"),
    "The museum is closed on Mondays.",
]
PLAIN = Words(language="")


def texts(found: Retrieved) -> list[str]:
    return [block.text or "" for block in found.blocks]


@pytest.fixture(scope="module")
def town() -> BM25Retriever:
    return BM25Retriever.build(TOWN)


def test_it_finds_by_words_the_best_first(town: BM25Retriever) -> None:
    assert texts(town.retrieve("When does the swimming pool open?", 1)) == [TOWN[1]]
    found = town.retrieve("opens ten", 4)
    assert texts(found)[0] == TOWN[0]
    assert list(found.scores) == sorted(found.scores, reverse=True)


def test_a_title_is_searched_and_the_block_is_the_callers(town: BM25Retriever) -> None:
    assert town.retrieve("night", 3).blocks == (TOWN[2],)


def test_what_shares_no_word_is_not_found(town: BM25Retriever) -> None:
    assert town.retrieve("penguins", 3) == Retrieved((), ())
    assert town.retrieve("", 3) == Retrieved((), ())
    assert len(town.retrieve("opens", 100).blocks) == 2


def test_one_and_many_async_and_not_are_the_same(town: BM25Retriever) -> None:
    queries = ["ten", "opens on Mondays", "tram"]
    many = town.retrieve_batch(queries, 2)
    assert many == [town.retrieve(query, 2) for query in queries]
    assert asyncio.run(town.aretrieve_batch(queries, 2)) == many
    assert town.retrieve_batch([], 2) == []
    assert isinstance(town, Retriever) and isinstance(town, AsyncRetriever)


def test_equal_scores_keep_the_order_of_the_corpus() -> None:
    alike = [f"plum {word}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    found = BM25Retriever.build(alike, words=PLAIN).retrieve("plum", 5)
    assert texts(found) == alike[:5]
    assert len(set(found.scores)) == 1


def test_repeats_are_one_block() -> None:
    index = BM25Retriever.build(["tea", "tea", ContextBlock("tea", id="other name"), ContextBlock("tea", title="T")])
    assert [(block.text, block.title) for block in index.blocks] == [("tea", None), ("tea", "T")]


def test_a_stemmer_is_used_for_both_sides() -> None:
    stems = Words(stemmer=lambda words: [word.rstrip("s") for word in words])
    assert texts(BM25Retriever.build(["two trams", "one bus"], words=stems).retrieve("tram", 2)) == ["two trams"]


def specified(corpus: Sequence[list[str]], query: list[str]) -> list[float]:
    """Lucene's BM25 in plain Python, k1 = 1.5, b = 0.75, without its constant factor of k1 + 1."""
    mean = sum(map(len, corpus)) / len(corpus)
    scores = []
    for document in corpus:
        counts, score = Counter(document), 0.0
        for word in query:
            holding = sum(word in other for other in corpus)
            if holding:
                idf = math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))
                saturation = 1.5 * (1 - 0.75 + 0.75 * len(document) / mean)
                score += idf * counts[word] / (counts[word] + saturation)
        scores.append(score)
    return scores


WORD = st.sampled_from(["aa", "bb", "cc", "dd", "ee"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(WORD, min_size=1, max_size=6), min_size=1, max_size=12, unique_by=tuple),
    st.lists(WORD, min_size=1, max_size=4),
    st.integers(1, 15),
)
def test_it_is_bm25(corpus: list[list[str]], query: list[str], k: int) -> None:
    index = BM25Retriever.build([" ".join(words) for words in corpus], words=PLAIN)
    scores = specified(corpus, query)
    found = index.retrieve(" ".join(query), k)
    place = {" ".join(words): position for position, words in enumerate(corpus)}
    positions = [place[text] for text in texts(found)]
    assert found.scores == pytest.approx([scores[p] for p in positions], rel=1e-4)
    assert len(positions) == min(k, sum(score > 0 for score in scores))
    by_rank = [(-score, position) for score, position in zip(found.scores, positions, strict=True)]
    assert by_rank == sorted(by_rank)
    left_out = [scores[p] for p in range(len(corpus)) if p not in positions]
    assert not left_out or not positions or max(left_out) <= min(found.scores) * (1 + 1e-4)


# -- on disk


def test_saved_and_loaded_it_finds_the_same(town: BM25Retriever, tmp_path: Path) -> None:
    town.save(tmp_path / "town.index")
    loaded = BM25Retriever.load(tmp_path / "town.index")
    assert loaded.blocks == town.blocks
    for query in ("opens ten", "Mondays", "nothing of it", "the"):
        assert loaded.retrieve(query, 3) == town.retrieve(query, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["town.index"]


def test_the_stemmer_is_asked_for_again(town: BM25Retriever, tmp_path: Path) -> None:
    town.save(tmp_path / "plain")
    BM25Retriever.build(["two trams"], words=Words(stemmer=list)).save(tmp_path / "stemmed")
    with pytest.raises(ConfigError, match="was built without one; give the stemmer that it was built with"):
        BM25Retriever.load(tmp_path / "plain", stemmer=list)
    with pytest.raises(ConfigError, match="was built with a stemmer"):
        BM25Retriever.load(tmp_path / "stemmed")
    assert texts(BM25Retriever.load(tmp_path / "stemmed", stemmer=list).retrieve("trams", 1)) == ["two trams"]


def test_an_index_whose_parts_do_not_fit_is_refused(town: BM25Retriever, tmp_path: Path) -> None:
    town.save(tmp_path / "town")
    with zipfile.ZipFile(tmp_path / "town") as whole, zipfile.ZipFile(tmp_path / "cut", "w") as cut:
        for name in whole.namelist():
            if name != "vocab.index.json":
                cut.writestr(name, whole.read(name))
    with pytest.raises(RetrieverError, match="is no index, or a damaged one"):
        BM25Retriever.load(tmp_path / "cut")
    with zipfile.ZipFile(tmp_path / "town") as whole, zipfile.ZipFile(tmp_path / "short", "w") as short:
        for name in whole.namelist():
            part = whole.read(name)
            short.writestr(name, part.split(b"\n", 1)[1] if name == "blocks.jsonl" else part)
    with pytest.raises(RetrieverError, match="3 blocks, and scores of 4"):
        BM25Retriever.load(tmp_path / "short")


# -- bad input


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "documents: is empty; give at least one document"),
        ("tea", "documents: is one string; give a list of strings or of ContextBlock objects"),
        (["tea", 7], "documents[1]: is int; give a str or a ContextBlock"),
        (["tea", " \n"], "documents[1]: has no text; leave it out, or give its text"),
        ([ContextBlock(id=3)], "documents[0]: has no text; leave it out, or give its text"),
        (["the", "? !"], "documents: have no word to search for; give texts, or Words(language='')"),
    ],
)
def test_documents_that_cannot_be_indexed(documents: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        BM25Retriever.build(documents)
    assert str(refused.value) == message


def test_settings_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match=r"k1: is -1; give a number of 0 or more"):
        BM25Retriever.build(["tea"], k1=-1)
    with pytest.raises(ConfigError, match=r"b: is 2; give a number from 0 to 1"):
        BM25Retriever.build(["tea"], b=2)
    with pytest.raises(ConfigError, match=r"language"):
        BM25Retriever.build(["tea"], words=Words(language="klingon"))


def test_bad_queries(town: BM25Retriever) -> None:
    with pytest.raises(InvalidRequestError, match="k: is 0"):
        town.retrieve("tea", 0)
    with pytest.raises(InvalidRequestError, match="queries: is one string"):
        town.retrieve_batch("tea", 1)
