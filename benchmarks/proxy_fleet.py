"""Several engines behind one proxy: cluster hit rate, imbalance and time to first token of each routing policy.

    python -m benchmarks.proxy_fleet [--engines 4] [--sessions 32] [--turns 8] [--cache-tokens 32000] [--rate 20000]
        [--policies context_aware round_robin]

Engines are simulated, each with a cache of its own (LRU, exact to the token) and a prefill of ``--rate`` tokens a
second, one prompt after the other; the proxy is the real one, over loopback. Sessions are mixed: half retrieve
documents for each question (``context_blocks``, under a conversation id), a quarter ask about long documents in plain
chats that grow, a quarter are single questions with documents. A session has a topic, which two sessions share; five of
its six documents are of that, the popular ones more often, and one is of any. Each session waits for an answer before
it asks on. Beside the policies stands one engine with as many times the cache and the speed. Hit rate is
cached over prompt tokens as the engines count; imbalance is the largest over the mean of the tokens that they computed.

``one killed`` is context_aware with one of the engines ended when half of the requests have come: what failed, and the
hit rate of the last quarter of the requests, beside that of the same quarter with all of them (``last_quarter``).
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from benchmarks.machine import save

from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.proxy.settings import Routing
from prefixpilot.testing import SimulatedEngine

WORDS: Final = ("tram", "river", "bridge", "market", "ticket", "museum", "tower", "harbour", "garden", "school")
DOCUMENT_WORDS: Final = 150
TOPICS: Final = 16
OF_A_TOPIC: Final = 12
OWN: Final = 5
ANSWER: Final = "The documents say so, and that is all there is to it."


@dataclass
class Load:
    """What the sessions send, the same for every arm."""

    sessions: int
    turns: int
    documents: list[str] = field(default_factory=list)
    contexts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(7)
        count = TOPICS * OF_A_TOPIC
        self.documents = [f"Report {n}: " + " ".join(rng.choices(WORDS, k=DOCUMENT_WORDS)) for n in range(count)]
        for session in range(self.sessions):
            self.contexts += [self._retrieved(rng, session % TOPICS) for _ in range(self.turns)]

    def _retrieved(self, rng: random.Random, topic: int) -> list[int]:
        """Zipf inside the topic; in an order of its own, as retrievers have it."""
        weights = [1 / (1 + rank) ** 0.7 for rank in range(OF_A_TOPIC)]
        drawn: dict[int, None] = {}
        while len(drawn) < OWN:
            drawn.setdefault(topic * OF_A_TOPIC + rng.choices(range(OF_A_TOPIC), weights)[0])
        while len(drawn) == OWN:
            drawn.setdefault(rng.randrange(len(self.documents)))
        return rng.sample(list(drawn), len(drawn))

    def blocks(self, session: int, turn: int) -> list[str]:
        return [self.documents[n] for n in self.contexts[session * self.turns + turn]]


@dataclass
class Session(threading.Thread):
    """One client: see the module."""

    url: str
    number: int
    load: Load

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.ttfts: list[float] = []
        self.failed = 0

    def __hash__(self) -> int:
        return self.number

    def run(self) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(self.load.turns):
            blocks = self.load.blocks(self.number, turn)
            kind = self.number // TOPICS * 2 + self.number % 2  # of the two of a topic one is of another kind
            question = f"Question {turn} of {self.number}: what follows from that?"
            headers = {"Content-Type": "application/json"}
            body: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
            if kind == 2:  # a plain chat about one long text, that grows
                if not messages:
                    question = "\n\n".join(blocks) + "\n\n" + question
                messages.append({"role": "user", "content": question})
            elif kind == 3:
                messages = [{"role": "user", "content": question}]
                body["context_blocks"] = blocks
            else:
                headers["X-PrefixPilot-Conversation"] = f"session {self.number}"
                messages.append({"role": "user", "content": question})
                body["context_blocks"] = blocks
            self.ask({**body, "messages": messages}, headers)
            messages.append({"role": "assistant", "content": ANSWER})

    def ask(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        begin = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            response.read(1)
            self.ttfts.append(time.monotonic() - begin)
            response.read()
            self.failed += response.status != 200
        except (http.client.HTTPException, OSError):
            self.failed += 1
        finally:
            connection.close()


@dataclass
class Counted(RadixPrefixCache):
    """A cache that adds up what it is asked."""

    capacity: int

    def __post_init__(self) -> None:
        super().__init__(self.capacity)
        self.total = self.cached = self.requests = 0

    def access(self, prompt: Any) -> Any:
        access = super().access(prompt)
        self.requests += 1
        self.total += access.total_tokens
        self.cached += access.cached_tokens
        return access


def arm(
    load: Load, count: int, routing: Routing, cache_tokens: int, rate: float, *, kill: bool = False
) -> dict[str, Any]:
    """One policy over ``count`` engines, from cold caches."""
    with ExitStack() as stack:
        caches = [Counted(cache_tokens) for _ in range(count)]
        engines = [stack.enter_context(SimulatedEngine(cache=cache, reply=lambda body: ANSWER)) for cache in caches]
        for engine in engines:
            engine.prefill_tokens_per_s = rate
        urls = tuple(engine.base_url for engine in engines)
        settings = ProxySettings(
            urls[0],
            engines=urls if count > 1 else (),
            routing=routing,
            port=0,
            cache_tokens=cache_tokens,
            # a busy machine is no reason to take one out
            fleet=FleetSettings(check_interval=60, eject_after=3 if kill else 1000),
        )
        proxy = stack.enter_context(serve_in_thread(settings))
        sessions = [Session(proxy.url, number, load) for number in range(load.sessions)]
        begin = time.monotonic()
        for session in sessions:
            session.start()
        asked = load.sessions * load.turns
        if kill:
            wait_for(caches, sessions, asked // 2)
            engines[1].stop()
        wait_for(caches, sessions, asked * 3 // 4)
        before = added(caches)
        for session in sessions:
            session.join()
        seconds = time.monotonic() - begin
        last = [now - then for now, then in zip(added(caches), before, strict=True)]
    computed = [cache.total - cache.cached for cache in caches]
    ttfts = sorted(ttft for session in sessions for ttft in session.ttfts)
    return {
        "hit_rate": round(sum(c.cached for c in caches) / sum(c.total for c in caches), 4),
        "last_quarter": round(last[1] / last[0], 4) if last[0] else None,
        "imbalance": round(max(computed) / statistics.mean(computed), 3),
        "computed_tokens": sum(computed),
        "requests": [cache.requests for cache in caches],
        "failed": sum(session.failed for session in sessions),
        "ttft_p50_s": round(ttfts[len(ttfts) // 2], 3),
        "ttft_p95_s": round(ttfts[len(ttfts) * 95 // 100], 3),
        "seconds": round(seconds, 1),
    }


def wait_for(caches: Sequence[Counted], sessions: Sequence[Session], requests: int) -> None:
    """Until so many requests have come to the engines, or the sessions are over."""
    while sum(cache.requests for cache in caches) < requests and any(session.is_alive() for session in sessions):
        time.sleep(0.01)


def added(caches: Sequence[Counted]) -> tuple[int, int]:
    """Prompt tokens and cached ones, so far."""
    return sum(cache.total for cache in caches), sum(cache.cached for cache in caches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--cache-tokens", type=int, default=32_000)
    parser.add_argument("--policies", nargs="+", choices=get_args(Routing), default=get_args(Routing))
    parser.add_argument("--rate", type=float, default=20_000)
    args = parser.parse_args()
    load = Load(args.sessions, args.turns)
    rows: dict[str, Any] = {}
    whole = args.engines * args.cache_tokens
    rows["one engine"] = arm(load, 1, "context_aware", whole, args.engines * args.rate)
    print("one engine", rows["one engine"], flush=True)
    for routing in args.policies:
        rows[routing] = arm(load, args.engines, routing, args.cache_tokens, args.rate)
        print(routing, rows[routing], flush=True)
    rows["one killed"] = arm(load, args.engines, "context_aware", args.cache_tokens, args.rate, kill=True)
    print("one killed", rows["one killed"], flush=True)
    rates = {name: row["hit_rate"] for name, row in rows.items()}
    if {"context_aware", "round_robin"} <= set(rates):
        best, one, turns = (rates[name] for name in ("context_aware", "one engine", "round_robin"))
        print(f"context_aware / one engine: {best / one:.3f}; context_aware / round_robin: {best / turns:.2f}")
    save("proxy_fleet", {"settings": vars(args), "arms": rows})


if __name__ == "__main__":
    main()
