"""Memory of a running proxy: its resident size while it serves conversations, then requests that stand alone.

    python -m benchmarks.proxy_memory [--conversations 500] [--turns 10] [--alone 30000] [--every 1000] [--seed 0]
    python -m benchmarks.proxy_memory --together 2000 [--requests 50000]

The proxy is a process of its own (`prefixpilot serve`, its default bounds) before an engine that answers at once. A
turn of a conversation has 15 of 3,000 documents of 1 kB, and every message before it; a request alone has 15 small
documents that nobody has sent before: 20,000 fill the index, the rest shows whether it stays as it is. Flat means: the
last fifth of the requests that stand alone adds less than 2 %.

With `--together` so many conversations go on at the same time instead, each with a turn in its turn: half of them with
`context_blocks` under an id, half as an application that writes its documents into its messages and sends its whole
history. Bounds are small, so that conversations, forms, contexts and plans are evicted all the time; a conversation
that has had all its turns begins anew under another name. Flat means: the second half of the requests adds less than
10 %. Writes `proxy_memory_together.json`. Linux only (`/proc`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from benchmarks.machine import save

ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1},
    }
).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
DOCUMENTS = 15
START_S = 30.0
TURNS = 12
BOUNDS = (
    "--max-conversations=400",
    "--max-ledger-bytes=25165824",
    "--max-contexts=3000",
    "--max-blocks=15000",
    "--max-plans=500",
    "--ordinary-max-forms=20000",
    "--ordinary-max-forms-bytes=16777216",
)
"""Of `--together`: a fifth of what goes on at the same time, so that most of it is evicted before it comes again."""


class Engine(StreamRequestHandler):
    """Answers every request at once."""

    def handle(self) -> None:
        while True:
            length = 0
            line = self.rfile.readline()
            if not line:
                return
            while line not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
                line = self.rfile.readline()
            self.rfile.read(length)
            self.wfile.write(HEAD + ANSWER)


class Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class Proxy:
    """The proxy as a process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._port = port

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return round(int(found[1]) / 1024, 1) if found else float("nan")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def chat(self, messages: list[dict[str, str]], documents: list[str] | None, **headers: str) -> None:
        body: dict[str, Any] = {"model": "m", "messages": messages}
        if documents is not None:
            body["context_blocks"] = documents
        status, answer = self.request("POST", "/v1/chat/completions", body, **headers)
        if status != 200:
            raise RuntimeError(f"status {status}: {answer[:300]!r}")

    def gauges(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics")[1].decode().split("\n")
        names = ("prefixpilot_index_live_requests", "prefixpilot_conversations")
        return {name: float(line.split()[1]) for line in lines for name in names if line.startswith(f"{name} ")}


@contextmanager
def running_proxy(engine: str, *bounds: str) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--engine", engine, "--port", str(port)]
    process = subprocess.Popen([*command, *bounds], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    proxy = Proxy(process, port)
    try:
        bound = time.monotonic() + START_S
        while True:
            try:
                if proxy.request("GET", "/healthz")[0] == 200:
                    break
            except OSError:
                if time.monotonic() > bound or process.poll() is not None:
                    raise
            time.sleep(0.05)
        yield proxy
    finally:
        process.terminate()
        process.wait(30)


def converse(proxy: Proxy, name: str, turns: int, documents: list[str], rng: random.Random) -> Iterator[None]:
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of {name}?"})
        proxy.chat(messages, rng.sample(documents, DOCUMENTS), **{"X-PrefixPilot-Conversation": name})
        messages.append({"role": "assistant", "content": "ok"})
        yield


def conversations(proxy: Proxy, count: int, turns: int, rng: random.Random) -> Iterator[None]:
    documents = [f"Document {i}. " + "lorem ipsum dolor " * 55 for i in range(3000)]
    for number in range(count):
        yield from converse(proxy, f"conversation {number}", turns, documents, rng)


def alone(proxy: Proxy, count: int, rng: random.Random) -> Iterator[None]:
    for _ in range(count):
        documents = [f"Fresh document {rng.randrange(10**12)}." for _ in range(DOCUMENTS)]
        proxy.chat([{"role": "user", "content": "Question?"}], documents)
        yield


class Going:
    """One of many conversations that go on at the same time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.with_blocks = number % 2 == 0
        self.begun = 0
        self.messages: list[dict[str, str]] = []

    def turn(self, proxy: Proxy, rng: random.Random) -> None:
        """The next turn; of a new conversation when this one has had all of its own."""
        if len(self.messages) >= 2 * TURNS:
            self.begun, self.messages = self.begun + 1, []
        name = f"conversation {self.number}/{self.begun}"
        question = f"Question {len(self.messages)} of {name}?"
        found = [f"Document {i} of many. " + "lorem ipsum dolor " * 16 for i in rng.sample(range(3000), 4)]
        if self.with_blocks:
            self.messages.append({"role": "user", "content": question})
            proxy.chat(self.messages, found, **{"X-PrefixPilot-Conversation": name})
        else:
            units = "\n".join(f'<source id="{i}" name="d.txt">{text}</source>' for i, text in enumerate(found, 1))
            self.messages.append({"role": "user", "content": f"<context>\n{units}\n</context>\n\n{question}"})
            proxy.chat(self.messages, None)
        self.messages.append({"role": "assistant", "content": "ok"})


def together(proxy: Proxy, conversations: int, requests: int, rng: random.Random) -> Iterator[None]:
    going = [Going(number) for number in range(conversations)]
    for number in range(requests):
        going[number % conversations].turn(proxy, rng)
        yield


def resident(proxy: Proxy, requests: Iterator[None], every: int) -> list[dict[str, float]]:
    """Resident size before the first request and after every so many."""
    sizes: list[dict[str, float]] = [{"requests": 0, "rss_mb": proxy.rss_mb()}]
    for done, _ in enumerate(requests, 1):
        if done % every == 0:
            sizes.append({"requests": done, "rss_mb": proxy.rss_mb()})
    return sizes


@contextmanager
def before_an_engine(*bounds: str) -> Iterator[Proxy]:
    with Server(("127.0.0.1", 0), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        with running_proxy(f"http://127.0.0.1:{engine.server_address[1]}", *bounds) as proxy:
            yield proxy
        engine.shutdown()


def growth(sizes: list[dict[str, float]], share: float) -> float:
    """How much the last part of the requests has added, as a share of what there was."""
    before = sizes[-1 - max(1, round(len(sizes) * share))]
    return round(sizes[-1]["rss_mb"] / before["rss_mb"] - 1, 4)


def one_after_another(args: argparse.Namespace, rng: random.Random) -> bool:
    with before_an_engine() as proxy:
        talking = resident(proxy, conversations(proxy, args.conversations, args.turns, rng), args.every)
        by_themselves = resident(proxy, alone(proxy, args.alone, rng), args.every)
        gauges = proxy.gauges()
    added = growth(by_themselves, 0.2)
    sizes = {"of_conversations": talking, "alone": by_themselves}
    save("proxy_memory", {"workload": vars(args), **sizes, "last_fifth_growth": added, "at_the_end": gauges})
    return added < 0.02


def all_together(args: argparse.Namespace, rng: random.Random) -> bool:
    began = time.monotonic()
    with before_an_engine(*BOUNDS) as proxy:
        sizes = resident(proxy, together(proxy, args.together, args.requests, rng), args.every)
        gauges = proxy.gauges()
    added = growth(sizes, 0.5)
    workload = {"together": args.together, "requests": args.requests, "turns": TURNS, "bounds": BOUNDS}
    told = {"second_half_growth": added, "seconds": round(time.monotonic() - began, 1), "at_the_end": gauges}
    save("proxy_memory_together", {"workload": workload, "sizes": sizes, **told})
    return added < 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"conversations": 500, "turns": 10, "alone": 30_000, "every": 1000, "seed": 0}
    for name, default in {**numbers, "together": 0, "requests": 50_000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    run = all_together if args.together else one_after_another
    return 0 if run(args, random.Random(args.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
