"""How many borders of documents are proved where no mark shows them, and whether a document is ever cut.

    python benchmarks/edges.py [--requests 2000] [--seed 1]

Each corpus is asked 5 documents at a time, popular ones more often. ``units`` is prefixpilot.formats.edges; ``pairs``
is the simple rule that it was preferred to: a joint is a border if both texts beside it were met beside something else.

    python benchmarks/edges.py --soon

How soon documents are proved in a small corpus: of 40 documents, 4 or 5 asked at a time behind a frame, the share of
those of a request that may change places, by how many requests came before; beside the most that any rule could have
that wants three meetings of a document.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prefixpilot.formats.edges import EdgeStore

Documents = Sequence[Sequence[str]]
ASKED = 5


class PairRule:
    """The simple rule."""

    def __init__(self) -> None:
        self._behind: defaultdict[str, set[str]] = defaultdict(set)
        self._before: defaultdict[str, set[str]] = defaultdict(set)

    def joints(self, form: str, texts: Sequence[str], framed: bool) -> tuple[int, ...]:
        return tuple(
            i
            for i in range(1, len(texts))
            if self._behind[texts[i - 1]] - {texts[i]} and self._before[texts[i]] - {texts[i - 1]}
        )

    def observe(self, form: str, texts: Sequence[str], framed: bool) -> None:
        for first, second in pairwise(texts):
            self._behind[first].add(second)
            self._before[second].add(first)


@dataclass
class Score:
    """Of one rule on one corpus."""

    rule: EdgeStore | PairRule
    proved: int = 0
    borders: int = 0
    wrong: int = 0
    cut_requests: int = 0
    seconds: float = 0.0
    slowest: float = 0.0

    def ask(self, texts: Sequence[str], borders: set[int]) -> None:
        started = time.perf_counter()
        inner = [joint for joint in self.rule.joints("f", texts, True) if 0 < joint < len(texts)]
        took = time.perf_counter() - started
        self.rule.observe("f", texts, True)
        self.seconds, self.slowest = self.seconds + took, max(self.slowest, took)
        wrong = sum(joint not in borders for joint in inner)
        self.proved += len(inner) - wrong
        self.borders += ASKED - 1
        self.wrong += wrong
        self.cut_requests += wrong > 0


def paragraph(rng: random.Random) -> str:
    return " ".join(f"w{rng.randrange(5000)}" for _ in range(40))


def corpora(rng: random.Random) -> dict[str, tuple[Documents, bool]]:
    """Documents as paragraphs, and whether they always come in one order."""
    shared = [paragraph(rng) for _ in range(6)]
    running = [paragraph(rng) for _ in range(200)]
    pool = [paragraph(rng) for _ in range(100)]

    def some(count: int, make: Callable[[], list[str]]) -> Documents:
        return [make() for _ in range(count)]

    def plain() -> list[str]:
        return [paragraph(rng) for _ in range(rng.choice((1, 1, 2, 3)))]

    return {
        "20 documents of 1-3 paragraphs": (some(20, plain), False),
        "100 documents": (some(100, plain), False),
        "1,000 documents": (some(1000, plain), False),
        "boilerplate pair inside": (
            some(100, lambda: [paragraph(rng), *rng.sample(shared, 2), paragraph(rng)]),
            False,
        ),
        "boilerplate pair at the head": (some(100, lambda: [*rng.sample(shared, 2), paragraph(rng)]), False),
        "passages that overlap by half": ([running[i : i + 2] for i in range(199)], False),
        "passages that overlap by two thirds": ([running[i : i + 3] for i in range(198)], False),
        "always in one order": (some(30, lambda: [paragraph(rng)]), True),
        "nothing but shared paragraphs": (some(100, lambda: rng.sample(pool, 3)), False),
    }


def play(documents: Documents, in_order: bool, requests: int, seed: int) -> dict[str, Score]:
    rng = random.Random(seed)
    weights = [1 / (1 + i) for i in range(len(documents))]
    scores = {"units": Score(EdgeStore()), "pairs": Score(PairRule())}
    for _ in range(requests):
        chosen: list[int] = []
        while len(chosen) < ASKED:
            (document,) = rng.choices(range(len(documents)), weights)
            chosen += [document] if document not in chosen else []
        texts: list[str] = []
        borders: set[int] = set()
        for document in sorted(chosen) if in_order else chosen:
            texts += documents[document]
            borders.add(len(texts))
        for score in scores.values():
            score.ask(texts, borders)
    return scores


SOON = ((0, 26), (26, 50), (50, 100), (100, 200))
CORPUS = 40


def movable(seed: int, exponent: float) -> tuple[list[float], list[float]]:
    """Of each request, the share of its documents that may move; and the most that three meetings allow."""
    rng = random.Random(seed)
    weights = [1 / (1 + i) ** exponent for i in range(CORPUS)]
    documents = [paragraph(rng) for _ in range(CORPUS)]
    store, met = EdgeStore(), [0] * CORPUS
    shares: tuple[list[float], list[float]] = ([], [])
    for _ in range(SOON[-1][1]):
        chosen: list[int] = []
        while len(chosen) < rng.choice((4, 5)):
            (document,) = rng.choices(range(CORPUS), weights)
            chosen += [document] if document not in chosen else []
        texts = ["The frame that the application writes.", *(documents[i] for i in chosen)]
        units = max(0, len(store.joints("f", texts, False)) - 1)
        store.observe("f", texts, False)
        known = next((place for place, i in enumerate(chosen) if met[i] < 2), len(chosen))
        known -= known < len(chosen)
        for i in chosen:
            met[i] += 1
        shares[0].append(units / len(chosen))
        shares[1].append(known / len(chosen) if known > 1 else 0.0)
    return shares


def soon(seeds: int = 10) -> None:
    print(f"{'exponent':10}{'':12}" + "".join(f"{f'{first + 1}-{last}':>10}" for first, last in SOON))
    for exponent in (0.8, 1.0, 1.2):
        runs = [movable(seed, exponent) for seed in range(seeds)]
        for which, name in enumerate(("units", "at most")):
            means = [sum(sum(run[which][first:last]) for run in runs) / seeds / (last - first) for first, last in SOON]
            print(f"{exponent:<10}{name:12}" + "".join(f"{mean:10.1%}" for mean in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--soon", action="store_true")
    arguments = parser.parse_args()
    if arguments.soon:
        soon()
        return
    columns = f"{'borders proved':>15}{'documents cut':>15}{'in requests':>13}{'mean':>9}{'slowest':>9}"
    print(f"{'corpus':37}{'rule':7}{columns}")
    for name, (documents, in_order) in corpora(random.Random(arguments.seed)).items():
        for rule, score in play(documents, in_order, arguments.requests, arguments.seed).items():
            mean = score.seconds / arguments.requests
            print(
                f"{name:37}{rule:7}{score.proved / score.borders:15.1%}{score.wrong:15,}{score.cut_requests:13,}"
                f"{mean * 1e3:6.2f} ms{score.slowest * 1e3:6.1f} ms"
            )


if __name__ == "__main__":
    main()
