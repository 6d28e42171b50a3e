"""What the proxy costs: requests a second, CPU time, and added latency, before an engine that answers at once.

    python -m benchmarks.proxy_throughput [--documents 15] [--bytes 4000] [--concurrency 8] [--seconds 5] [--rate 50]
        [--rounds 3] [--awake] [--peer-python PYTHON]

Engine, proxy and clients are processes of their own on loopback. The proxy has the first core, all else the others.
The clients are one thread with a connection each (:mod:`benchmarks.senders`), and each sends the next request when the
answer is there. All documents are drawn from 400, and every request asks another question:

* ``planned``: ``context_blocks``, each request alone;
* ``ledger``: ``context_blocks`` as the first turn of a conversation of its own, recorded in memory;
* ``kept``: that, recorded on disk too (``--state-dir``);
* ``passthrough``: the same bytes under another key;
* ``direct``: the engine itself;
* ``peer``: the proxy of another package (``--peer-python`` names an interpreter that has it), which takes the same
  documents as the result of a tool. Where it stops answering, what it did before counts, and ``hung`` says so.

Added latency is a percentile through the proxy less that of the engine, one client that sends ``--rate`` requests a
second: a time counts from when its request was due. CPU time is that of the proxy's process by the kernel's scheduler
(Linux): it says more than requests a second where others use the machine too. A core that sleeps between two requests
is slow in the first milliseconds of the next; ``--awake`` keeps all cores from it by processes that run only where
nobody else wants to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import save
from benchmarks.senders import NUMBER, Sender, Sent

ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }
).encode()
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0
CONVERSATION = b"X-PrefixPilot-Conversation: " + NUMBER + b"\r\n"
PEER = ("-m", "contextpilot.server.http_server", "--host", "127.0.0.1", "--stateless", "--log-level", "error")


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


WORDS = ("the", "engine", "prompt", "cache", "block", "token", "prefix", "reuse", "order", "tree", "leaf", "cost")


def drawn(count: int, documents: int, size: int, seed: int) -> list[list[str]]:
    """The documents of each request."""
    rng = random.Random(seed)
    texts = [(f"document {i}: " + " ".join(rng.choices(WORDS, k=size)))[:size] for i in range(400)]
    return [rng.sample(texts, documents) for _ in range(count)]


def requests(count: int, documents: int, size: int, key: str, seed: int, headers: bytes = b"") -> list[bytes]:
    """Whole HTTP requests; ``key`` is where the documents stand in the body."""
    message = {"role": "user", "content": f"question {NUMBER.decode()}?"}
    return [
        _post({"model": "m", "messages": [message], key: texts}, headers)
        for texts in drawn(count, documents, size, seed)
    ]


def tool_requests(count: int, documents: int, size: int, seed: int) -> list[bytes]:
    """The same documents as the result of a tool."""
    call = {"id": "t", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    opening = [
        {"role": "user", "content": f"question {NUMBER.decode()}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    made = []
    for texts in drawn(count, documents, size, seed):
        result = "<documents>\n" + "\n".join(f"<document>{text}</document>" for text in texts) + "\n</documents>"
        made.append(
            _post({"model": "m", "messages": [*opening, {"role": "tool", "tool_call_id": "t", "content": result}]})
        )
    return made


def _post(document: dict[str, Any], headers: bytes = b"") -> bytes:
    body = json.dumps(document).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked.

    Attributes:
        process: whose CPU time is counted.
        made: the requests, one after another and then again from the first.
    """

    port: int
    process: int
    made: list[bytes]


def measure(target: Target, send: Callable[[Callable[[], None]], Sent]) -> dict[str, float]:
    """What ``send`` sends, and the CPU time of the target meanwhile."""
    before = list[float]()
    sent = send(lambda: before.append(cpu_seconds(target.process)))
    used = cpu_seconds(target.process) - before[0]
    return {
        "requests_per_s": round(sent.per_s, 1),
        "p50_ms": round(sent.percentile(0.5), 3),
        "p99_ms": round(sent.percentile(0.99), 3),
        "cpu_ms": round(used * 1e3 / len(sent.times), 3),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_seconds(process: int) -> float:
    """CPU time of a process; NaN where the system does not tell."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return float("nan")


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started within it runs there; anywhere, if there are none."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def awake(core: int) -> Iterator[None]:
    """A process that runs on this core whenever nothing else does."""
    spin = f"import os; os.sched_setaffinity(0, {{{core}}}); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    with subprocess.Popen([sys.executable, "-c", f"{spin}\nwhile True: pass"]) as child:
        try:
            yield
        finally:
            child.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def process(command: list[str], port: int) -> Iterator[int]:
    """A child that listens on ``port`` within the bound, and is ended afterwards with all that it started. Its id."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True) as child:
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
            yield child.pid
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_TIMEOUT_S)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests a second and added latency of the proxy.")
    parser.add_argument("--documents", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=4000, help="of one document")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="all targets by turns; the quietest round of each counts")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second where latency is measured")
    parser.add_argument("--awake", action="store_true", help="keep the cores from sleeping (Linux)")
    parser.add_argument("--peer-python", help="an interpreter that has contextpilot, whose proxy is measured too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine-port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine_port:
        run_engine(args.engine_port)
        return 0
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first, others = set(cores[:1]), set(cores[1:] or cores)
    shape = 200, args.documents, args.bytes
    workload = {k: v for k, v in vars(args).items() if k not in ("engine_port", "peer_python")}
    result: dict[str, Any] = {"workload": workload}
    with ExitStack() as stack:
        if args.awake:
            for core in cores:
                stack.enter_context(awake(core))
        stack.enter_context(on_cores(others))
        engine = free_port()
        command = [sys.executable, "-m", "benchmarks.proxy_throughput", "--engine-port", str(engine)]
        engine_process = stack.enter_context(process(command, engine))
        root = f"http://127.0.0.1:{engine}"

        def started(*command: str) -> tuple[int, int]:
            port = free_port()
            with on_cores(first):
                return port, stack.enter_context(process([*command, "--port", str(port)], port))

        serve = (sys.executable, "-m", "prefixpilot.cli", "serve", "--engine", root)
        planned = requests(*shape, "context_blocks", args.seed)
        turns = requests(*shape, "context_blocks", args.seed, CONVERSATION)
        proxy = started(*serve)
        keeping = started(*serve, "--state-dir", stack.enter_context(tempfile.TemporaryDirectory()))
        targets = {
            "direct": Target(engine, engine_process, planned),
            "passthrough": Target(*proxy, requests(*shape, "other", args.seed)),
            "planned": Target(*proxy, planned),
            "ledger": Target(*proxy, turns),
            "kept": Target(*keeping, turns),
        }
        if args.peer_python:
            peer = started(args.peer_python, *PEER, "--infer-api-url", root)
            targets["peer"] = Target(*peer, tool_requests(*shape, args.seed))
        sender = Sender()
        for target in targets.values():
            sender.seconds(target.port, target.made, 2, 2.0, lambda: None)  # warm
        found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in targets}
        hung: dict[str, str] = {}
        for _ in range(args.rounds):
            for name, target in targets.items():
                if name in hung:
                    continue
                try:
                    for kind, figures in measured(sender, target, args.concurrency, args.seconds, args.rate):
                        found[name].setdefault(kind, []).append(figures)
                except TimeoutError as error:
                    if name != "peer":
                        raise
                    hung[name] = str(error)
    result |= {name: {kind: best(rounds) for kind, rounds in kinds.items()} for name, kinds in found.items()}
    result["hung"] = hung
    base = result["direct"]["at_rate"]
    result["added_ms"] = {
        name: {p: round(result[name]["at_rate"][p] - base[p], 3) for p in ("p50_ms", "p99_ms")}
        for name in targets
        if name != "direct" and "at_rate" in result[name]
    }
    save("proxy_throughput", result)
    return 0


def measured(
    sender: Sender, target: Target, concurrency: int, seconds: float, rate: float
) -> Iterator[tuple[str, dict[str, float]]]:
    """What was measured, by name. Raises TimeoutError: no answer came."""
    port, made = target.port, target.made
    yield f"concurrency_{concurrency}", measure(target, lambda go: sender.seconds(port, made, concurrency, seconds, go))
    yield "concurrency_1", measure(target, lambda go: sender.seconds(port, made, 1, seconds, go))
    yield "at_rate", measure(target, lambda go: sender.at_rate(port, made, rate, seconds, go))


def best(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The round with the least CPU time: that in which others disturbed least."""
    return min(rounds, key=lambda found: found["cpu_ms"])


if __name__ == "__main__":
    sys.exit(main())
