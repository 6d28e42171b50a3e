"""What several proxies before several engines lose by being several, in simulated time: no sockets, no Ray.

    python -m benchmarks.two_proxies [--sessions 128] [--seeds 0 1] [--cache-tokens 7000 8000 10000 16000 32000]
                                     [--think 0.3]

The sessions of ``benchmarks.ray_serve`` in shape (half conversations of four turns, half four questions each), 32 at a
time, each waiting for an answer before it asks on. A door chooses the proxy (:class:`SharedBlocks`), the proxy orders
by its own index and chooses the engine (:class:`ContextAware`), the engine computes one prompt after the other. Rows:
hit rate of one engine with four times the cache; as shares of that, one proxy before four engines, two proxies with
two engines each, and two proxies that use all four. Last, the largest over the mean of what engines computed.

Without `--think` all clients wait for engines all the time, whose queues are long and even. With it they let so many
seconds pass before they ask on, and queues are a prompt or two, as they are under Ray (which takes its time itself).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from benchmarks.machine import save

from prefixpilot import ContextPilot, PilotConfig, Request
from prefixpilot.annotations import Templates
from prefixpilot.bench.rendering import block_segments, order_segments
from prefixpilot.core import ContextBlock, ConversationId, RequestId
from prefixpilot.prefix_cache import RadixPrefixCache, Segment
from prefixpilot.routing import ContextAware, Load, RoutedRequest, SharedBlocks
from prefixpilot.workloads.synthetic import SyntheticTrace, sessions, topical

ENGINES: Final = 4
AT_ONCE: Final = 32
TURNS: Final = 4
SHRINK: Final = 10
RATE: Final = 20_000.0
"""Prompt tokens a second of each engine."""
ELSE_S: Final = 0.3
"""What a request takes beside its prefill at an engine; with a time to think, nothing."""
QUESTION: Final = 10
TEMPLATES: Final = Templates()

Context = tuple[ContextBlock, ...]


class Session(NamedTuple):
    """Requests one after the other; ``conversation`` if they are its turns."""

    number: int
    conversation: str | None
    contexts: Sequence[Context]


def contexts_of(trace: SyntheticTrace, name: str) -> list[Context]:
    blocks = [ContextBlock(id=f"{name}{n}", tokens=tokens // SHRINK) for n, tokens in enumerate(trace.tokens)]
    return [tuple(blocks[number] for number in context) for context in trace.contexts]


def mixed(count: int, seed: int) -> list[Session]:
    """Conversations and askers by turns."""
    chats, asks = sessions(count // 2, TURNS, 6, 400, seed), topical(count // 2 * TURNS, 8, seed)
    of_chat: dict[int, list[Context]] = {}
    for owner, context in zip(chats.sessions, contexts_of(chats, "c"), strict=True):
        of_chat.setdefault(owner, []).append(context)
    asked = contexts_of(asks, "a")
    found: list[Session] = []
    for owner, contexts in sorted(of_chat.items()):
        found.append(Session(2 * owner, f"chat-{owner}", contexts))
        found.append(Session(2 * owner + 1, None, asked[owner * TURNS : (owner + 1) * TURNS]))
    return found


class Proxy:
    """Orders by its own index, and routes by its own picture of the engines that it uses."""

    def __init__(self, numbers: Sequence[int], engines: int, cache_tokens: int) -> None:
        self._numbers = frozenset(numbers)
        self._pilot = ContextPilot(PilotConfig(cache_tokens=cache_tokens * len(numbers)))
        self._router = ContextAware(cache_tokens)
        self._history: dict[str, list[Segment]] = {}
        self._in_flight, self._prefill = [0] * engines, [0] * engines
        self.requests = 0

    def prompt(self, session: Session, turn: int, name: str) -> list[Segment]:
        conversation = None if session.conversation is None else ConversationId(session.conversation)
        plan = self._pilot.optimize(Request(session.contexts[turn], RequestId(name), conversation_id=conversation))
        question = Segment(("question", session.number, turn), QUESTION)
        new = [*block_segments(plan, TEMPLATES), *order_segments(plan, TEMPLATES), question]
        if session.conversation is None:
            return new
        history = self._history.setdefault(session.conversation, [])
        history.extend(new)
        return list(history)

    def seat(self, prompt: Sequence[Segment], conversation: str | None) -> Seat:
        request = RoutedRequest(prompt, conversation)
        loads = [
            Load(flight, prefill, number in self._numbers)
            for number, (flight, prefill) in enumerate(zip(self._in_flight, self._prefill, strict=True))
        ]
        route = self._router.route(request, loads)
        self._router.sent(request, route.replica)
        seat = Seat(route.replica, request.tokens - route.cached_tokens)
        self._count(seat, 1)
        self.requests += 1
        return seat

    def leave(self, seat: Seat) -> None:
        self._count(seat, -1)

    def _count(self, seat: Seat, sign: int) -> None:
        self._in_flight[seat.engine] += sign
        self._prefill[seat.engine] += sign * seat.tokens


class Seat(NamedTuple):
    """A request at an engine, and what is believed that it has to compute."""

    engine: int
    tokens: int


class Engine:
    """One prompt after the other."""

    def __init__(self, cache_tokens: int) -> None:
        self._cache = RadixPrefixCache(cache_tokens)
        self._free_at = 0.0
        self.tokens = self.cached = 0

    def take(self, prompt: Sequence[Segment], now: float, else_s: float) -> float:
        """When it is answered."""
        access = self._cache.access(prompt)
        self.tokens += access.total_tokens
        self.cached += access.cached_tokens
        self._free_at = max(self._free_at, now) + access.prefilled_tokens / RATE
        return self._free_at + else_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one arm."""

    hit_rate: float
    imbalance: float
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A turn that is about to be asked, or whose answer has come (``seat``)."""

    session: Session
    turn: int
    proxy: int = 0
    seat: Seat | None = None


class Cluster:
    """A door, proxies and engines, and the clients before them."""

    def __init__(
        self, work: Sequence[Session], proxies: Sequence[Sequence[int]], engines: int, cache: int, think: float = 0.0
    ) -> None:
        self._think, self._else = think, 0.0 if think else ELSE_S
        self._proxies = [Proxy(numbers, engines, cache) for numbers in proxies]
        self._engines = [Engine(cache) for _ in range(engines)]
        self._door = SharedBlocks(cache * engines // len(proxies))
        self._under_way = [0] * len(proxies)
        self._waiting = list(reversed(work))
        self._queue: list[tuple[float, int, Step]] = []
        self._tickets = 0

    def run(self) -> Outcome:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._at(0.0, Step(self._waiting.pop(), 0))
        while self._queue:
            now, _, step = heappop(self._queue)
            if step.seat is None:
                self._ask(now, step)
            else:
                self._answered(now, step, step.seat)
        total, cached = (sum(getattr(engine, name) for engine in self._engines) for name in ("tokens", "cached"))
        most = max(engine.tokens - engine.cached for engine in self._engines)
        requests = tuple(proxy.requests for proxy in self._proxies)
        return Outcome(cached / total, most * len(self._engines) / (total - cached), requests)

    def _at(self, when: float, step: Step) -> None:
        self._tickets += 1
        heappush(self._queue, (when, self._tickets, step))

    def _ask(self, now: float, step: Step) -> None:
        session = step.session
        carried = [Segment(block.id, block.tokens or 0) for block in session.contexts[step.turn]]
        told = RoutedRequest(carried, session.conversation)
        chosen = self._door.route(told, [Load(count) for count in self._under_way]).replica
        self._door.sent(told, chosen)
        self._under_way[chosen] += 1
        proxy = self._proxies[chosen]
        prompt = proxy.prompt(session, step.turn, f"r{session.number}-{step.turn}")
        seat = proxy.seat(prompt, session.conversation)
        answered = self._engines[seat.engine].take(prompt, now, self._else)
        self._at(answered, Step(session, step.turn, chosen, seat))

    def _answered(self, now: float, step: Step, seat: Seat) -> None:
        self._proxies[step.proxy].leave(seat)
        self._under_way[step.proxy] -= 1
        again = now + self._think
        if step.turn + 1 < len(step.session.contexts):
            self._at(again, Step(step.session, step.turn + 1))
        elif self._waiting:
            self._at(again, Step(self._waiting.pop(), 0))


def arms(work: Sequence[Session], cache: int, think: float) -> dict[str, Outcome]:
    every = range(ENGINES)
    return {
        "one engine": Cluster(work, [[0]], 1, ENGINES * cache, think).run(),
        "one proxy": Cluster(work, [every], ENGINES, cache, think).run(),
        "own engines": Cluster(work, [every[::2], every[1::2]], ENGINES, cache, think).run(),
        "all engines": Cluster(work, [every, every], ENGINES, cache, think).run(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--cache-tokens", type=int, nargs="+", default=[7_000, 8_000, 10_000, 16_000, 32_000])
    parser.add_argument("--think", type=float, default=0.0, help="seconds between an answer and the next request")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for cache in args.cache_tokens:
        for seed in args.seeds:
            found = arms(mixed(args.sessions, seed), cache, args.think)
            whole = found["one engine"].hit_rate
            row: dict[str, Any] = {"cache_tokens": cache, "seed": seed, "one engine": round(whole, 4)}
            for name, outcome in found.items():
                if name != "one engine":
                    shares = outcome.hit_rate / whole, outcome.imbalance
                    row[name] = [*(round(share, 3) for share in shares), list(outcome.requests)]
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    name = "two_proxies" + ("_thinking" if args.think else "")
    save(name, {"sessions": args.sessions, "engines": ENGINES, "think_s": args.think, "rows": rows})


if __name__ == "__main__":
    main()
