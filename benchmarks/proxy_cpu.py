"""CPU time of the proxy for one request, on a machine that others use, too; several versions of it side by side.

    python -m benchmarks.proxy_cpu [--tree before=PATH --tree after=PATH] [--clients 1,8,32] [--bursts 12]
        [--targets other,planned,ledger]

One process sends bursts of requests by turns to every target, so that all of them meet the same neighbours; what is
shown is the CPU time of the target's process by the kernel's scheduler (Linux), over all bursts: the least, quartile
and median. The least says most. Targets, each with 15 documents of 4,000 bytes but the first:

* ``health``: `GET /healthz`, which is answered by the proxy;
* ``other``: a path that is passed on unread;
* ``passthrough``: a chat request that is read, and passed on as it came;
* ``planned``, ``ledger``: with ``context_blocks``, alone or as the first turn of a conversation of its own;
* ``relay``, ``relay_httptools``: :mod:`benchmarks.bare_relay`, of the first tree.

A tree is a directory with ``src/``; the default is this one.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import save
from benchmarks.proxy_throughput import (
    CONVERSATION,
    NUMBER,
    Target,
    cpu_seconds,
    free_port,
    on_cores,
    process,
    requests,
)

ROOT = Path(__file__).resolve().parents[1]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Number: " + NUMBER + b"\r\n\r\n"
OF_PROXY = ("health", "other", "passthrough", "planned", "ledger")
OF_RELAY = ("relay", "relay_httptools")


class Burst(NamedTuple):
    """One burst: CPU milliseconds a request, requests a second, and the median of their times in milliseconds."""

    cpu_ms: float
    per_s: float
    p50_ms: float


class Client:
    """One connection, with at most one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._answer = b""
        self.sent = 0.0

    def send(self, request: bytes) -> None:
        self.sent = time.perf_counter()
        self.socket.sendall(request)

    def answered(self) -> bool:
        """Read what has come; whether the answer is whole. Raises RuntimeError: it is no 200."""
        data = self.socket.recv(65536)
        self._answer += data
        end = self._answer.find(b"\r\n\r\n")
        if not data or (end >= 0 and not self._answer.startswith(b"HTTP/1.1 200")):
            raise RuntimeError(f"no answer, or another one: {self._answer[:300]!r}")
        if end < 0:
            return False
        length = int(self._answer[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(self._answer) < end + 4 + length:
            return False
        self._answer = b""
        return True


class Sender:
    """Sends bursts. Every request has a number that no other has."""

    def __init__(self) -> None:
        self._number = os.getpid() * 10**8

    def _next(self, made: list[bytes]) -> bytes:
        self._number += 1
        return made[self._number % len(made)].replace(NUMBER, b"%016d" % self._number)

    def burst(self, target: Target, clients: int, count: int) -> Burst:
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            connected = [Client(target.port) for _ in range(clients)]
            for each in connected:
                stack.enter_context(each.socket)
                selector.register(each.socket, selectors.EVENT_READ, each)
            self._run(target, selector, connected, clients)  # each connection has served one
            before, begun = cpu_seconds(target.process), time.perf_counter()
            times = sorted(self._run(target, selector, connected, count))
            took, used = time.perf_counter() - begun, cpu_seconds(target.process) - before
        return Burst(used * 1e3 / count, count / took, times[count // 2] * 1e3)

    def _run(
        self, target: Target, selector: selectors.DefaultSelector, clients: list[Client], count: int
    ) -> list[float]:
        times: list[float] = []
        sent = min(count, len(clients))
        for each in clients[:sent]:
            each.send(self._next(target.made))
        while len(times) < count:
            for key, _ in selector.select(60):
                each = key.data
                if not each.answered():
                    continue
                times.append(time.perf_counter() - each.sent)
                if sent < count:
                    sent += 1
                    each.send(self._next(target.made))
        return times


def made_for(name: str) -> list[bytes]:
    if name == "health":
        return [HEALTH]
    key = "context_blocks" if name in ("planned", "ledger") else "other"
    made = requests(200, 15, 4000, key, 0, CONVERSATION if name == "ledger" else b"")
    passed = name == "other" or name in OF_RELAY
    return [each.replace(b"/v1/chat/completions", b"/v1/embeddings", 1) for each in made] if passed else made


def start(stack: ExitStack, tree: Path, cores: set[int], *command: str) -> tuple[int, int]:
    """Port and process of a server made of that tree."""
    port = free_port()
    os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{ROOT}"
    with on_cores(cores):
        return port, stack.enter_context(process([sys.executable, "-m", *command, "--port", str(port)], port))


def figures(bursts: list[Burst]) -> dict[str, float]:
    cpu = sorted(burst.cpu_ms for burst in bursts)
    return {
        "cpu_ms_min": round(cpu[0], 3),
        "cpu_ms_p25": round(cpu[len(cpu) // 4], 3),
        "cpu_ms_p50": round(statistics.median(cpu), 3),
        "requests_per_s_max": round(max(burst.per_s for burst in bursts), 1),
        "p50_ms_min": round(min(burst.p50_ms for burst in bursts), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--targets", default=",".join(OF_PROXY))
    parser.add_argument("--bursts", type=int, default=12)
    parser.add_argument("--requests", type=int, default=160, help="of one burst")
    args = parser.parse_args()
    trees = dict(each.split("=", 1) for each in args.tree) or {"here": str(ROOT)}
    names, clients = args.targets.split(","), [int(each) for each in args.clients.split(",")]
    cores = sorted(os.sched_getaffinity(0))
    seen: dict[str, list[Burst]] = {}
    with ExitStack() as stack:
        stack.enter_context(on_cores(set(cores[1:] or cores)))
        engine = free_port()
        command = [sys.executable, "-m", "benchmarks.proxy_throughput", "--engine-port", str(engine)]
        stack.enter_context(process(command, engine))
        root, first = f"http://127.0.0.1:{engine}", set(cores[:1])
        targets: dict[str, Target] = {}
        for tree, path in trees.items():
            at = start(stack, Path(path), first, "prefixpilot.cli", "serve", "--engine", root)
            targets |= {f"{name} {tree}": Target(*at, made_for(name)) for name in names if name in OF_PROXY}
        for name in (name for name in names if name in OF_RELAY):
            http = ("--http", "httptools") if name == "relay_httptools" else ()
            at = start(stack, ROOT, first, "benchmarks.bare_relay", root, *http)
            targets[name] = Target(*at, made_for(name))
        sender = Sender()
        for target in targets.values():
            sender.burst(target, 2, 2 * args.requests)  # warm
        for _ in range(args.bursts):
            for count in clients:
                for name, target in targets.items():
                    seen.setdefault(f"{name}, {count} clients", []).append(sender.burst(target, count, args.requests))
    workload = {"clients": clients, "bursts": args.bursts, "requests": args.requests, "trees": list(trees)}
    save("proxy_cpu", {"workload": workload, "targets": {name: figures(bursts) for name, bursts in seen.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
