"""What the proxy costs: requests a second, and added latency, before an engine that answers at once.

    python -m benchmarks.proxy_throughput [--documents 15] [--bytes 4000] [--concurrency 8] [--seconds 5]

Engine, proxy and clients are processes of their own on loopback; each client keeps one connection and sends the next
request when the answer is there. `planned` requests bring documents drawn from 400 (each request other ones, so that
all of the planner's work is done), `passthrough` the same bytes under another key. `direct` asks the engine itself.
Added latency is a percentile through the proxy less that of the engine, one client at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.machine import save

ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }
).encode()
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
START_TIMEOUT_S = 30.0


class Engine(asyncio.Protocol):
    """Answers each complete request at once. Reads no more of it than its length."""

    def __init__(self) -> None:
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._data) < end + 4 + length:
                return
            del self._data[: end + 4 + length]
            self._transport.write(RESPONSE)


def run_engine(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


def requests(count: int, documents: int, size: int, key: str, seed: int) -> list[bytes]:
    """Whole HTTP requests; ``key`` is where the documents stand in the body."""
    rng = random.Random(seed)
    texts = [(f"document {i}: " + " ".join(rng.choices(WORDS, k=size)))[:size] for i in range(400)]
    made = []
    for i in range(count):
        message = {"role": "user", "content": f"question {i}?"}
        body = json.dumps({"model": "m", "messages": [message], key: rng.sample(texts, documents)}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        made.append(head.encode() + body)
    return made


WORDS = ("the", "engine", "prompt", "cache", "block", "token", "prefix", "reuse", "order", "tree", "leaf", "cost")


def ask(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    answer = b""
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += _received(connection)
    length = int(answer[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:300].decode("latin-1"))
    while len(answer) < end + 4 + length:
        answer += _received(connection)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise RuntimeError("the connection was closed in the midst of an answer")
    return data


@dataclass(frozen=True, slots=True)
class Served:
    """What one client saw.

    Attributes:
        start, end: on the clock that all processes share, in seconds.
        times: milliseconds of each request.
    """

    start: float
    end: float
    times: list[float]


def client(port: int, made: list[bytes], first: int, seconds: float, ready: Barrier, served: Queue[Served]) -> None:
    """Ask on one connection, for so many seconds, from the moment at which all clients are ready."""
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, made[first])
        ready.wait(START_TIMEOUT_S)
        begun = now = time.monotonic()
        for i in range(first, sys.maxsize):
            ask(connection, made[i % len(made)])
            before, now = now, time.monotonic()
            times.append((now - before) * 1e3)
            if now > begun + seconds:
                break
    served.put(Served(begun, now, times))


def measure(port: int, made: list[bytes], concurrency: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ready, queue = context.Barrier(concurrency), context.Queue()
    firsts = [len(made) * i // concurrency for i in range(concurrency)]
    clients = [context.Process(target=client, args=(port, made, i, seconds, ready, queue)) for i in firsts]
    for each in clients:
        each.start()
    served = [queue.get(timeout=seconds + 2 * START_TIMEOUT_S) for _ in clients]
    for each in clients:
        each.join()
    times = sorted(t for one in served for t in one.times)
    return {
        "requests_per_s": round(len(times) / (max(s.end for s in served) - min(s.start for s in served)), 1),
        "p50_ms": round(times[len(times) // 2], 3),
        "p99_ms": round(times[len(times) * 99 // 100], 3),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def process(command: list[str], port: int) -> Iterator[None]:
    """A child that listens on ``port`` within the bound, and is ended afterwards."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if child.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{command} does not listen on {port}") from None
                    time.sleep(0.05)
            yield
        finally:
            child.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests a second and added latency of the proxy.")
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=4000, help="of one document")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine-port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine_port:
        run_engine(args.engine_port)
        return 0

    planned, passed = (requests(200, args.documents, args.bytes, key, args.seed) for key in ("context_blocks", "other"))
    engine, proxy = free_port(), free_port()
    run_it = [sys.executable, "-m", "benchmarks.proxy_throughput", "--engine-port", str(engine)]
    serve = [sys.executable, "-m", "prefixpilot.cli", "serve", "--engine", f"http://127.0.0.1:{engine}"]
    arms = {"direct": (engine, planned), "passthrough": (proxy, passed), "planned": (proxy, planned)}
    result: dict[str, Any] = {"workload": {k: v for k, v in vars(args).items() if k != "engine_port"}}
    with process(run_it, engine), process([*serve, "--port", str(proxy)], proxy):
        for name, (port, made) in arms.items():
            measure(port, made, 1, 1.0)  # warm
            result[name] = {f"concurrency_{n}": measure(port, made, n, args.seconds) for n in (args.concurrency, 1)}
    direct = result["direct"]["concurrency_1"]
    result["added_ms"] = {
        name: {p: round(result[name]["concurrency_1"][p] - direct[p], 3) for p in ("p50_ms", "p99_ms")}
        for name in ("passthrough", "planned")
    }
    save("proxy_throughput", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
