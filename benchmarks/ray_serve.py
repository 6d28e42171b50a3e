"""Proxy replicas under Ray Serve before simulated engines: hit rate and imbalance by policy, and what a kill costs.

    python -m benchmarks.ray_serve [--sessions 128] [--cache-tokens 8000 16000] [--only context-aware ...] [--kill]
                                   [--more]

in an environment with Ray. Saved after each arm; `--more` goes on with what an earlier run has saved.

Half of the sessions are conversations of four turns whose documents recur in them, half are four questions each on a
corpus with topics; 32 sessions at a time. Two proxy replicas, one door, four engines with a cache each, all Serve
deployments on this machine; beside them one engine with four times the cache behind one proxy replica, and one proxy
replica before all four. Hits are what the engines report. `--kill` ends a proxy replica after a third of the requests
and an engine after two thirds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

import ray
from benchmarks.machine import RESULTS, save
from ray import serve

from prefixpilot.ray import app, engines
from prefixpilot.routing import POLICIES
from prefixpilot.workloads.synthetic import SyntheticTrace, sessions, topical

ENGINES: Final = 4
AT_ONCE: Final = 32
TURNS: Final = 4
PORT: Final = 8231
SHRINK: Final = 10
"""Documents have a tenth of their tokens here: the engines are not what is measured."""
LAG_S: Final = 120.0


def texts_of(trace: SyntheticTrace, name: str) -> list[str]:
    """A text for each block. A word of three letters is a token to the engine, and by the proxy's estimate, too."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [
        f"{name}{number} " + " ".join("".join(rng.choices(letters, k=3)) for _ in range(tokens // SHRINK))
        for number, tokens in enumerate(trace.tokens)
    ]


@dataclass(frozen=True, slots=True)
class Session:
    """Requests one after the other; ``conversation`` if they are its turns."""

    conversation: str | None
    contexts: Sequence[Sequence[str]]


def mixed(count: int) -> list[Session]:
    """Conversations and askers by turns."""
    chats, asks = sessions(count // 2, TURNS, 6, 400), topical(count // 2 * TURNS, 8)
    chat_texts, ask_texts = texts_of(chats, "chat"), texts_of(asks, "doc")
    by_chat: dict[int, list[list[str]]] = {}
    for owner, context in zip(chats.sessions, chats.contexts, strict=True):
        by_chat.setdefault(owner, []).append([chat_texts[block] for block in context])
    found = [Session(f"chat-{owner}", contexts) for owner, contexts in sorted(by_chat.items())]
    for first in range(0, len(asks.contexts), TURNS):
        contexts = [[ask_texts[block] for block in context] for context in asks.contexts[first : first + TURNS]]
        found.insert(2 * (first // TURNS) + 1, Session(None, contexts))
    return found


@dataclass(slots=True)
class Seen:
    """What came of an arm."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    done: int = 0
    windows: list[list[int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, usage: dict[str, Any], engine: str, seconds: float) -> None:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        with self.lock:
            self.prompt_tokens += usage["prompt_tokens"]
            self.cached_tokens += cached
            self.prefilled[engine] += usage["prompt_tokens"] - cached
            self.times.append(seconds)
            if self.done % 64 == 0:
                self.windows.append([0, 0])
            self.done += 1
            self.windows[-1][0] += cached
            self.windows[-1][1] += usage["prompt_tokens"]

    def report(self, engines: int) -> dict[str, Any]:
        filled = sorted(self.prefilled.values())
        ordered = sorted(self.times) or [0.0]
        return {
            "requests": self.done,
            "hit_rate": round(self.cached_tokens / max(1, self.prompt_tokens), 4),
            "prefilled_tokens": sum(filled),
            "imbalance": round(max(filled, default=0) * engines / max(1, sum(filled)), 3),
            "seconds_p50": round(ordered[len(ordered) // 2], 3),
            "wrong": self.wrong,
            "errors": self.errors[:5],
            "error_count": len(self.errors),
            "hit_rate_of_each_64": [round(cached / max(1, total), 3) for cached, total in self.windows],
        }


def ask(session: Session, seen: Seen) -> None:
    """All requests of a session over one connection; a conversation sends its history as clients do."""
    messages: list[dict[str, str]] = []
    connection = HTTPConnection("127.0.0.1", PORT, timeout=LAG_S)
    headers = {"content-type": "application/json"}
    if session.conversation is not None:
        headers["x-prefixpilot-conversation"] = session.conversation
    for number, context in enumerate(session.contexts):
        question = {"role": "user", "content": f"question {number} of {session.conversation}"}
        messages = [*messages, question] if session.conversation is not None else [question]
        body = json.dumps({"messages": messages, "context_blocks": list(context)})
        begun = time.perf_counter()
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (HTTPException, OSError) as error:
            seen.errors.append(f"{type(error).__name__}: {error}")
            connection.close()
            continue
        if answer.status != 200:
            seen.errors.append(f"{answer.status}: {data[:200]!r}")
            continue
        parsed = json.loads(data)
        said = parsed["choices"][0]["message"]["content"]
        seen.wrong += said != "This is a simulated answer."
        seen.add(parsed["usage"], answer.headers.get("x-prefixpilot-engine", "0"), time.perf_counter() - begun)
        messages = [*messages, {"role": "assistant", "content": said}]
    connection.close()


def replica_of(application: str, deployment: str) -> Any:
    """A replica of a deployment, to kill it."""
    prefix = f"SERVE_REPLICA::{application}#{deployment}#"
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    return ray.get_actor(next(name for name in sorted(names) if name.startswith(prefix)), namespace="serve")


def killer(seen: Seen, total: int, stop: threading.Event) -> None:
    for share, application, deployment in ((1 / 3, "pilot", "pilots"), (2 / 3, "engine2", "engine")):
        while seen.done < share * total:
            if stop.wait(0.05):
                return
        ray.kill(replica_of(application, deployment), no_restart=True)


def arm(
    policy: str,
    count: int,
    cache_tokens: int,
    work: Sequence[Session],
    *,
    replicas: int = 2,
    kill: bool = False,
    own: bool = True,
) -> dict[str, Any]:
    """One policy, from cold engines and proxies. ``own``: each proxy replica has its share of the engines."""
    for number in range(count):
        told = {"kind": "simulated", "cache_tokens": cache_tokens, "cpus": 0.1, "prefill_rate": 20_000}
        built = engines.build({**told, "port": PORT + 1 + number})
        serve.run(built, name=f"engine{number}", route_prefix=f"/engines/{number}")
    urls = [f"http://127.0.0.1:{PORT + 1 + number}" for number in range(count)]
    scale = {"replicas": replicas, "policy": policy, "cpus": 0.1, "own_engines": own}
    args = {"engines": urls, "cache_tokens": cache_tokens, "routing": policy.replace("-", "_"), "scale": scale}
    serve.run(app.build(args), name="pilot", route_prefix="/")
    seen, stop = Seen(), threading.Event()
    ending = threading.Thread(target=killer, args=(seen, sum(len(s.contexts) for s in work), stop))
    if kill:
        ending.start()
    begun = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda session: ask(session, seen), work))
    seconds = time.perf_counter() - begun
    stop.set()
    for name in ("pilot", *(f"engine{number}" for number in range(count))):
        serve.delete(name)
    return {**seen.report(count), "seconds": round(seconds, 1)}


def arms(args: argparse.Namespace, done: Container[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those that are not done, by name."""
    work = mixed(args.sessions)
    told: dict[str, Callable[[], dict[str, Any]]] = {}
    for cache in args.cache_tokens:
        if not args.kill:
            told[f"{cache}: one engine"] = partial(arm, "context-aware", 1, ENGINES * cache, work, replicas=1)
            told[f"{cache}: one proxy"] = partial(arm, "context-aware", ENGINES, cache, work, replicas=1)
        for policy in args.only or POLICIES:
            name = policy + (" (killed)" if args.kill else "") + (" (all engines)" if args.all_engines else "")
            own = not args.all_engines
            told[f"{cache}: {name}"] = partial(arm, policy, ENGINES, cache, work, kill=args.kill, own=own)
    for name, run in told.items():
        if name not in done:
            yield name, run()


def saved(name: str) -> dict[str, Any]:
    """The arms of an earlier run."""
    path = RESULTS / f"{name}.json"
    arms: dict[str, Any] = json.loads(path.read_text())["arms"] if path.exists() else {}
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=128)
    parser.add_argument(
        "--cache-tokens", type=int, nargs="+", default=[8_000, 16_000], help="of each of the four engines"
    )
    parser.add_argument("--only", nargs="*", choices=POLICIES)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--all-engines", action="store_true", help="every proxy replica uses every engine")
    parser.add_argument("--more", action="store_true", help="leave out and keep the arms that an earlier run has saved")
    args = parser.parse_args()
    name = "ray_serve" + ("_killed" if args.kill else "") + ("_all_engines" if args.all_engines else "")
    found = saved(name) if args.more else {}
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="300")
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    head = {"ray": ray.__version__, "engines": ENGINES, "sessions": args.sessions}
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        for title, report in arms(args, found):
            found[title] = report
            print(f"{title:32} {report}", flush=True)
            save(name, {**head, "arms": found})
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
