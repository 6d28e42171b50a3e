"""What it costs to look for documents in a prompt, by what stands in it.

    python benchmarks/formats_cost.py [--characters 60000] [--documents 15] [--repeats 15]

Each prompt holds as many documents of made-up prose. Some prompts hold marks of no format: prose, notes in Markdown,
source code. The others are rendered by the writers of ``tests/formats``, one for each way in which a format is written.
CPU time of this thread, the least of some runs, all recognisers together; ``dearest`` names the three that took most.
Writes ``results/formats_cost.json``.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import save
from tests.formats.writers import WRITERS, Document

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import NoEdges, Recogniser
from prefixpilot.formats.catalogue import RECOGNISERS, regions
from prefixpilot.formats.marks import asked

WORDS: Final = re.findall(
    r"\S+",
    "the mill at lower weir grinds rye and spelt when water is high enough for both wheels: a ledger of each day lies "
    "in the office (under the window) with its columns for grain, weight, price and hour; nobody reads it before noon, "
    "though the miller's well-kept copy would show when stones were dressed and how many sacks a cart took in 1904",
)


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=14)).capitalize() + "."


def prose(rng: random.Random) -> str:
    return " ".join(sentence(rng) for _ in range(4)) + "\n\n"


def notes(rng: random.Random) -> str:
    items = "\n".join(f"- **{rng.choice(WORDS)}**: {sentence(rng)}" for _ in range(3))
    return f"## {sentence(rng)}\n\n{prose(rng)}{items}\n\n1. [see]({rng.choice(WORDS)}.md)\n2. {sentence(rng)}\n\n"


def code(rng: random.Random) -> str:
    name, other = (rng.choice(WORDS).strip("(),;:.'") for _ in range(2))
    return (
        f"def {name}_{other}(items: dict[str, int], limit: int = 0) -> list[str]:\n"
        f'    """{sentence(rng)}"""\n    found = [item for item in items if items[item] < limit]\n'
        f"    if not found:  # {other}\n        return []\n    return sorted(found)\n\n\n"
    )


def documents(rng: random.Random, count: int, characters: int, make: Callable[[random.Random], str]) -> list[Document]:
    """Documents of about as many characters together."""
    made = []
    for index in range(count):
        body = ""
        while len(body) < characters // count:
            body += make(rng)
        made.append(Document(f"note-{index}.md", body.strip()))
    return made


def prompts(count: int, characters: int) -> Iterator[tuple[str, Role, str]]:
    """Name, role and text of each prompt."""
    rng = random.Random(1)
    for make in (prose, notes, code):
        text = "\n\n".join(body for _, body in documents(rng, count, characters, make))
        for role in ("user", "system", "tool"):
            yield f"no marks: {make.__name__}, {role}", role, f"Read these.\n\n{text}\n\nWhy?"
    for index, writer in enumerate(WRITERS):
        written = writer.write(documents(rng, count, characters, prose))
        yield f"{writer.name} ({index})", writer.role, written.text


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Least CPU time of a call in this thread: other work on the machine only adds."""
    taken = []
    for _ in range(repeats):
        started = time.thread_time_ns()
        work()
        taken.append(time.thread_time_ns() - started)
    return min(taken) / 1e6


def dearest(segment: Segment, recognisers: Sequence[Recogniser], repeats: int) -> dict[str, float]:
    """The three recognisers that took most, of those that were asked."""
    edges = NoEdges()
    cost: dict[str, float] = {}
    for one in recognisers:
        taken = cpu_ms(partial(one.find, segment, edges), repeats)
        cost[one.name] = round(max(taken, cost.get(one.name, 0)), 3)
    return dict(sorted(cost.items(), key=lambda item: -item[1])[:3])


def measured(role: Role, text: str, repeats: int) -> dict[str, Any]:
    segment = Segment((), text, role, 0)
    edges = NoEdges()
    found = regions(segment, RECOGNISERS, edges)
    asking = list(asked(segment, RECOGNISERS))
    return {
        "characters": len(text),
        "units": sum(len(region.units) for region in found),
        "asked": len(asking),
        "cpu_ms": round(cpu_ms(lambda: regions(segment, RECOGNISERS, edges), repeats), 3),
        "dearest": dearest(segment, asking, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=60_000)
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rows = {
        name: measured(role, text, options.repeats)
        for name, role, text in prompts(options.documents, options.characters)
    }
    save("formats_cost", {"recognisers": len(RECOGNISERS), "prompts": rows})


if __name__ == "__main__":
    main()
