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

A tree is a directory with ``src/``, or one of packages (``build/compiled``, of ``make compiled``); the default
is this one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import save
from benchmarks.proxy_throughput import (
    CONVERSATION,
    Target,
    cpu_seconds,
    free_port,
    on_cores,
    process,
    requests,
)
from benchmarks.senders import NUMBER, Sender

ROOT = Path(__file__).resolve().parents[1]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Number: " + NUMBER + b"\r\n\r\n"
OF_PROXY = ("health", "other", "passthrough", "planned", "ledger")
OF_RELAY = ("relay", "relay_httptools")


class Burst(NamedTuple):
    """One burst: CPU milliseconds a request, requests a second, and the median of their times in milliseconds."""

    cpu_ms: float
    per_s: float
    p50_ms: float


def burst(sender: Sender, target: Target, clients: int, count: int) -> Burst:
    before = list[float]()
    sent = sender.count(target.port, target.made, clients, count, lambda: before.append(cpu_seconds(target.process)))
    used = cpu_seconds(target.process) - before[0]
    return Burst(used * 1e3 / count, sent.per_s, sent.percentile(0.5))


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
    sources = tree / "src" if (tree / "src").is_dir() else tree
    os.environ["PYTHONPATH"] = f"{sources}{os.pathsep}{ROOT}"
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
            burst(sender, target, 2, 2 * args.requests)  # warm
        for _ in range(args.bursts):
            for count in clients:
                for name, target in targets.items():
                    seen.setdefault(f"{name}, {count} clients", []).append(burst(sender, target, count, args.requests))
    workload = {"clients": clients, "bursts": args.bursts, "requests": args.requests, "trees": list(trees)}
    save("proxy_cpu", {"workload": workload, "targets": {name: figures(bursts) for name, bursts in seen.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
