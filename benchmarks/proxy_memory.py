"""Memory of a running proxy: its resident size while it serves conversations, then requests that stand alone.

    python -m benchmarks.proxy_memory [--conversations 500] [--turns 10] [--alone 30000] [--every 1000] [--seed 0]

The proxy is a process of its own (`prefixpilot serve`, its default bounds) before an engine that answers at once. A
turn of a conversation has 15 of 3,000 documents of 1 kB, and every message before it; a request alone has 15 small
documents that nobody has sent before: 20,000 fill the index, the rest shows whether it stays as it is. Flat means: the
last fifth of the requests that stand alone adds less than 2 %.
Linux only (`/proc`).
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

    def chat(self, messages: list[dict[str, str]], documents: list[str], **headers: str) -> None:
        body = {"model": "m", "messages": messages, "context_blocks": documents}
        status, answer = self.request("POST", "/v1/chat/completions", body, **headers)
        if status != 200:
            raise RuntimeError(f"status {status}: {answer[:300]!r}")

    def gauges(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics")[1].decode().split("\n")
        names = ("prefixpilot_index_live_requests", "prefixpilot_conversations")
        return {name: float(line.split()[1]) for line in lines for name in names if line.startswith(f"{name} ")}


@contextmanager
def running_proxy(engine: str) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--engine", engine, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
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


def resident(proxy: Proxy, requests: Iterator[None], every: int) -> list[dict[str, float]]:
    """Resident size before the first request and after every so many."""
    sizes: list[dict[str, float]] = [{"requests": 0, "rss_mb": proxy.rss_mb()}]
    for done, _ in enumerate(requests, 1):
        if done % every == 0:
            sizes.append({"requests": done, "rss_mb": proxy.rss_mb()})
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("conversations", 500), ("turns", 10), ("alone", 30_000), ("every", 1000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with Server(("127.0.0.1", 0), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        with running_proxy(f"http://127.0.0.1:{engine.server_address[1]}") as proxy:
            talking = resident(proxy, conversations(proxy, args.conversations, args.turns, rng), args.every)
            by_themselves = resident(proxy, alone(proxy, args.alone, rng), args.every)
            gauges = proxy.gauges()
        engine.shutdown()
    last, before = by_themselves[-1], by_themselves[-1 - max(1, len(by_themselves) // 5)]
    growth = last["rss_mb"] / before["rss_mb"] - 1
    save(
        "proxy_memory",
        {
            "workload": vars(args),
            "of_conversations": talking,
            "alone": by_themselves,
            "last_fifth_growth": round(growth, 4),
            "at_the_end": gauges,
        },
    )
    return 0 if growth < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
