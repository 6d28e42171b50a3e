"""CPU time of our own code for one request: from the bytes of its body to what is recorded of it, without sockets.

    python -m benchmarks.request_cost [--documents 15] [--bytes 4000] [--rounds 40] [--profile KIND]

One process, the proxy's own objects, a canned answer. Kinds:

* ``alone``: ``context_blocks``, a request that names no conversation;
* ``turn 1``, ``turn 2``, ``turn 5``: of a conversation, recorded in memory; five of the blocks have been sent before;
* ``kept 1``, ``kept 2``, ``kept 5``: the same with ``--state-dir``, eight conversations at a time, each waiting for the
  disk as the proxy does; the thread that writes is counted;
* ``ordinary 1``, ``ordinary 3``: the same documents as a known application writes them, without ``context_blocks``;
* ``unknown``: the same bytes under another key: read, nothing recognised, passed on as they came.

Documents are prose with line breaks and quotes, 15 of 400; every request asks another question. All kinds take turns,
so that what else the machine does falls on all of them. CPU time of the process, the median of the rounds and the tenth
of them that was fastest: the machine's other work only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.formats_cost import prose
from benchmarks.machine import save

from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.settings import ProxySettings

POOL: Final = 400
REPEATED: Final = 5
AT_A_TIME: Final = 8
TURNS: Final = 5
WARM_ROUNDS: Final = 70
"""By then the trial of tail policies asks few requests only, as in a server that has been up for a minute."""
ANSWER: Final = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }
).encode()

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Documents:
    """Where the documents of requests come from: the same ones for the same seed."""

    count: int
    size: int
    rng: random.Random = field(default_factory=lambda: random.Random(4))
    pool: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = [f"Report {i}.\n\n{self._text()}"[: self.size] for i in range(POOL)]

    def _text(self) -> str:
        text = ""
        while len(text) < self.size:
            text += f'"{prose(self.rng).strip()}" he wrote.\n\n'
        return text

    def drawn(self, before: Sequence[str] = ()) -> list[str]:
        """Those of one request; a few of them were in the last one of its conversation."""
        again = self.rng.sample(before, min(REPEATED, len(before)))
        texts = again + self.rng.sample(self.pool, self.count)
        return list(dict.fromkeys(texts))[: self.count]


@dataclass(slots=True)
class Talk:
    """One client's conversation; ``ordinary`` writes its documents into the messages."""

    documents: Documents
    number: int
    key: str | None = "context_blocks"
    messages: list[Json] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    def ask(self) -> bytes:
        """The body of the next turn."""
        self.last = self.documents.drawn(self.last)
        question = f"question {self.number}.{len(self.messages)}: what was written of it?"
        if self.key is None:
            question = f"{rendered(self.last)}\n\n{question}"
        self.messages.append({"role": "user", "content": question})
        body: Json = {"model": "m", "messages": [{"role": "system", "content": "Answer briefly."}, *self.messages]}
        self.messages.append({"role": "assistant", "content": "ok"})
        return json.dumps(body if self.key is None else {**body, self.key: self.last}).encode()


def rendered(texts: Sequence[str]) -> str:
    """Documents as many applications write them."""
    units = (
        f'<document index="{i}">\n<source>report-{i}.md</source>\n<document_content>\n{text}\n</document_content>\n'
        "</document>"
        for i, text in enumerate(texts, 1)
    )
    return "<documents>\n" + "\n".join(units) + "\n</documents>"


class Proxy:
    """The proxy's objects, driven as its app drives them."""

    def __init__(self, state_dir: str | None = None) -> None:
        settings = ProxySettings(engine="http://127.0.0.1:9", store=StoreSettings(state_dir=state_dir))
        self.app = ProxyApp(settings)
        self.pipeline = self.app.pipeline
        self.conversations = self.app._conversations

    async def serve(self, body: bytes, conversation: bytes | None) -> None:
        """One request, and its answer as one document."""
        headers = [(b"host", b"x"), (b"content-type", b"application/json"), (b"authorization", b"Bearer sk-1")]
        if conversation is not None:
            headers.append((b"x-prefixpilot-conversation", conversation))
        call = Call(headers, body)
        key = self.pipeline.key(call)
        if key is not None and self.conversations.wants(key):
            await self.conversations.load(key)
        forward = self.pipeline.prepare(call)
        if len(forward.body) < 1000:
            raise RuntimeError("a request lost its documents")
        seen = self.pipeline.observe(forward, 200, "application/json", "")
        seen.feed(ANSWER)
        if seen.unsettled():
            await self.conversations.settle()
        seen.finish()
        if seen.unsettled():
            await self.conversations.settle()

    def close(self) -> None:
        self.conversations.close()


@dataclass(slots=True)
class Meter:
    """CPU milliseconds a request, by kind, one figure a round."""

    profiled: str = ""
    taken: dict[str, list[float]] = field(default_factory=dict)
    profile: cProfile.Profile = field(default_factory=lambda: cProfile.Profile(time.thread_time))

    async def measure(self, kind: str, proxy: Proxy, talks: Sequence[Talk], *, conversations: bool) -> None:
        """One turn of each conversation, all at a time."""
        bodies = [talk.ask() for talk in talks]
        names = [b"c%d" % talk.number if conversations else None for talk in talks]
        profiled = kind == self.profiled
        begun = time.process_time()
        if profiled:
            self.profile.enable()
        await asyncio.gather(*(proxy.serve(body, name) for body, name in zip(bodies, names, strict=True)))
        if profiled:
            self.profile.disable()
        self.taken.setdefault(kind, []).append((time.process_time() - begun) * 1e3 / len(talks))


def numbers() -> Iterator[int]:
    number = 0
    while True:
        yield (number := number + 1)


async def measured(documents: Documents, rounds: int, meter: Meter, directory: str) -> None:
    memory, kept = Proxy(), Proxy(directory)
    number = numbers()

    def talks(key: str | None) -> list[Talk]:
        return [Talk(documents, next(number), key) for _ in range(AT_A_TIME)]

    for _ in range(WARM_ROUNDS):
        for proxy in (memory, kept):
            await meter.measure("warm", proxy, talks("context_blocks"), conversations=False)
    for done in range(rounds + 2):
        if done == 2:  # what came before was to warm up
            meter.taken.clear()
            meter.profile = cProfile.Profile(time.thread_time)
        await meter.measure("alone", memory, talks("context_blocks"), conversations=False)
        await meter.measure("unknown", memory, talks("other"), conversations=False)
        here, there = talks("context_blocks"), talks("context_blocks")
        ordinary = talks(None)
        for turn in range(1, TURNS + 1):
            await meter.measure(f"turn {turn}", memory, here, conversations=True)
            await meter.measure(f"kept {turn}", kept, there, conversations=True)
            if turn <= 3:
                await meter.measure(f"ordinary {turn}", memory, ordinary, conversations=False)
    memory.close()
    kept.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=4000, help="of one document")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--profile", default="", metavar="KIND", help="print where the time of a kind goes")
    parser.add_argument("--sort", default="tottime", help="how the profile is sorted")
    parser.add_argument("--lines", type=int, default=45, help="of the profile")
    parser.add_argument("--quiet", action="store_true", help="one line a kind, and no file")
    args = parser.parse_args()
    meter = Meter(args.profile)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measured(Documents(args.documents, args.bytes), args.rounds, meter, str(Path(directory))))
    rows = {
        kind: {"p10_ms": round(sorted(times)[len(times) // 10], 3), "p50_ms": round(median(times), 3)}
        for kind, times in sorted(meter.taken.items())
    }
    if args.profile:
        pstats.Stats(meter.profile).sort_stats(args.sort).print_stats(args.lines)
    if args.profile or args.quiet:
        for kind, row in rows.items():
            print(f"{kind:12} {row['p10_ms']:7.3f} {row['p50_ms']:7.3f}")
        return 0
    save("request_cost", {"documents": args.documents, "bytes": args.bytes, "rounds": args.rounds, "cpu": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
