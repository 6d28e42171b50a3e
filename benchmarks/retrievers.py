"""What indexing 10,000 blocks and answering 1,000 queries costs, by BM25 and by FAISS with the local model.

    python -m benchmarks.retrievers [--traces DIR] [--blocks 10000] [--queries 1000] [--runs 3]

Blocks are 150 words of the ``text-*`` workloads of a folder, in the order that they are found there, and queries the
questions of their requests; without a folder both are made of 20,000 invented words by Zipf's law. CPU time is that of
all threads; of several runs the least counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.machine import save

from prefixpilot.retrievers import BatchRetriever
from prefixpilot.retrievers.bm25 import BM25Retriever
from prefixpilot.retrievers.faiss import FaissRetriever

WORDS, K = 150, 10


class Texts(NamedTuple):
    """What is indexed and what is asked."""

    source: str
    blocks: list[str]
    queries: list[str]


class Cost(NamedTuple):
    """Seconds, of CPU (all threads) and of the clock."""

    cpu: float
    wall: float


def timed(run: Callable[[], object], runs: int) -> dict[str, float]:
    """The least of each."""
    costs = []
    for _ in range(runs):
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        costs.append(Cost(time.process_time() - cpu, time.perf_counter() - wall))
    return {"cpu_s": round(min(c.cpu for c in costs), 3), "wall_s": round(min(c.wall for c in costs), 3)}


def invented(blocks: int, queries: int) -> Texts:
    """Words of two to four syllables, by Zipf's law; queries of eight rarer ones."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er", "ist")]
    words = ["".join(rng.choice(syllables, size=rng.integers(2, 5))) for _ in range(20_000)]
    chance = 1 / np.arange(1, len(words) + 1)
    chance /= chance.sum()
    texts = [" ".join(rng.choice(words, size=WORDS, p=chance)) for _ in range(blocks)]
    asked = [" ".join(rng.choice(words[50:5000], size=8)) for _ in range(queries)]
    return Texts("invented", texts, asked)


def of_traces(folder: Path, blocks: int, queries: int) -> Texts:
    """Texts cut to blocks, and questions, repeated if there are too few of them."""
    traces = sorted(folder.glob("text-*"))
    words = (block["text"].split() for trace in traces for block in _lines(trace / "blocks.jsonl"))
    cut = (" ".join(one[start : start + WORDS]) for one in words for start in range(0, len(one), WORDS))
    texts = list(itertools.islice(dict.fromkeys(cut), blocks))
    asked = [request["query"] for trace in traces for request in _lines(trace / "requests.jsonl")]
    names = ", ".join(trace.name for trace in traces)
    return Texts(names, texts, list(itertools.islice(itertools.cycle(asked), queries)))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)


def measured(kind: type[BM25Retriever] | type[FaissRetriever], texts: Texts, runs: int) -> dict[str, Any]:
    """Build, save, load, and all queries at once and one by one."""
    built: list[BatchRetriever] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")
        build = timed(lambda: built.append(kind.build(texts.blocks, progress=True)), 1)
        index = built[0]
        assert isinstance(index, BM25Retriever | FaissRetriever)
        saving = timed(lambda: index.save(path), 1)
        size = path.stat().st_size
        loading = timed(lambda: kind.load(path), runs)
        loaded = kind.load(path)
    assert loaded.retrieve_batch(texts.queries[:50], K) == index.retrieve_batch(texts.queries[:50], K)
    return {
        "blocks": len(index.blocks),
        "build": build,
        "save": saving,
        "load": loading,
        "file_mb": round(size / 1e6, 1),
        "queries_at_once": timed(lambda: index.retrieve_batch(texts.queries, K), runs),
        "queries_one_by_one": timed(lambda: [index.retrieve(query, K) for query in texts.queries], runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="a folder with text-* workloads")
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    made = invented if args.traces is None else lambda b, q: of_traces(args.traces, b, q)
    texts = made(args.blocks, args.queries)
    libraries = {name: version(name) for name in ("bm25s", "faiss-cpu", "wordllama")}
    rows = {kind.__name__: measured(kind, texts, args.runs) for kind in (BM25Retriever, FaissRetriever)}
    about = {"texts": texts.source, "words_a_block": WORDS, "queries": len(texts.queries), "k": K}
    save("retrievers", {**about, "libraries": libraries, **rows})


if __name__ == "__main__":
    main()
