"""Whether a subscriber that takes nothing slows a real vLLM down: latency with it, with none, and with one that reads.

    PREFIXPILOT_VLLM_PYTHON=... python -m benchmarks.kv_events_stalled [--rounds 10] [--model FOLDER]

One vLLM publishes to a socket of ours. In turns of some requests each, the order drawn anew in every round: nobody
listens; a subscriber is connected and reads nothing (its process is stopped, all buffers are small); ours reads all.
Each request is a new prompt of 960 tokens and one token of answer: 30 pages are stored and as many removed. Before the
requests of the stalled turn are timed, others fill all buffers: ``batches that the stalled one got`` in the end, below
what was published meanwhile, says that the engine had to drop; if it had not, nothing was measured, and nothing is
reported. CPU time is that of all of vLLM's processes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import save
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, make_model

from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import SourceStatus
from prefixpilot.engines.endpoints import EventEndpoint
from prefixpilot.engines.kv_events import KvEventSubscriber

REQUESTS = 60
FILL = 600
"""Some 6 MB of events: more than the kernel lets a socket hold back by itself."""
TOKENS = 960
STALLED = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 1)
socket.setsockopt(zmq.RCVBUF, 4096)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.bind(sys.argv[1])
socket.poll(60_000)
print("connected", flush=True)
time.sleep(0.3)
count = 0
while socket.poll(1000):
    socket.recv_multipart()
    count += 1
print(count, flush=True)
"""


class Counts:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.batches = 0

    def on_batch(self, batch: EventBatch) -> None:
        self.batches += 1

    def on_status(self, status: SourceStatus) -> None:
        pass

    def unheard(self) -> int:
        return 0


class Arm:
    """Who listens, from ``begin`` to ``end``."""

    name = "nobody listens"

    def begin(self, server: VllmServer, warm: Callable[[], object]) -> None:
        pass

    def end(self) -> None:
        pass


class Reads(Arm):
    name = "ours reads"

    def __init__(self) -> None:
        self.counts = Counts()

    def begin(self, server: VllmServer, warm: Callable[[], object]) -> None:
        endpoint = EventEndpoint(server.events_endpoint, server.replay_endpoint)
        self._subscriber = KvEventSubscriber([endpoint], self.counts).start()
        warm()

    def end(self) -> None:
        self._subscriber.stop()


class Stalls(Arm):
    name = "one reads nothing"

    def __init__(self) -> None:
        self.got = self.sent = 0

    def begin(self, server: VllmServer, warm: Callable[[], object]) -> None:
        command = [sys.executable, "-c", STALLED, server.events_endpoint]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE)
        for _ in range(4):
            warm()  # until a batch reaches it, so that it is subscribed
        assert self._child.stdout is not None
        self._child.stdout.readline()
        self._child.send_signal(signal.SIGSTOP)
        for _ in range(FILL):
            warm()

    def end(self) -> None:
        self._child.send_signal(signal.SIGCONT)
        told, _ = self._child.communicate(timeout=60)
        self.got += int(told)
        self.sent += FILL + REQUESTS + 1


def prompt(chance: random.Random) -> list[int]:
    return [chance.randrange(10, 2000) for _ in range(TOKENS)]


def timed(server: VllmServer, chance: random.Random) -> float:
    tokens = prompt(chance)
    started = time.perf_counter()
    server.complete(tokens)
    return (time.perf_counter() - started) * 1000


def figures(times: list[float]) -> dict[str, Any]:
    ranked = sorted(times)
    return {
        "requests": len(ranked),
        "p10_ms": round(ranked[len(ranked) // 10], 2),
        "p50_ms": round(statistics.median(ranked), 2),
        "p90_ms": round(ranked[len(ranked) * 9 // 10], 2),
        "max_ms": round(ranked[-1], 2),
    }


def spread(values: list[float]) -> str:
    """Least, median and most of the rounds' means."""
    return f"{min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f}"


def run(server: VllmServer, rounds: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    stalls = Stalls()
    arms: list[Arm] = [Arm(), stalls, Reads()]
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    cpu: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(2 * REQUESTS):
        timed(server, chance)
    differences: list[float] = []
    for _ in range(rounds):
        medians: dict[str, float] = {}
        for arm in chance.sample(arms, len(arms)):
            arm.begin(server, lambda: timed(server, chance))
            timed(server, chance)
            before = server.cpu_seconds()
            part = [timed(server, chance) for _ in range(REQUESTS)]
            cpu[arm.name].append((server.cpu_seconds() - before) / REQUESTS * 1000)
            arm.end()
            times[arm.name] += part
            medians[arm.name] = statistics.median(part)
        differences.append(medians[Stalls.name] - medians[Arm.name])
    if stalls.got >= stalls.sent:
        sys.exit(f"the stalled subscriber got all of {stalls.sent} batches: nothing was full, nothing was measured")
    return {
        **{name: {**figures(part), "cpu_ms_a_request": spread(cpu[name])} for name, part in times.items()},
        "batches that the stalled one got": f"{stalls.got} of {stalls.sent}",
        "median of stalled minus nobody, ms, median over rounds": round(statistics.median(differences), 2),
        "rounds in which stalled was slower": f"{sum(d > 0 for d in differences)} of {rounds}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    python = os.environ[PYTHON_VARIABLE]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(python, args.model or Path(folder) / "tiny-llama")
        with VllmServer(python, model, Path(folder) / "log", blocks=130, max_tokens=1024, hwm=2) as server:
            save("kv_events_stalled", run(server, args.rounds, args.seed))


if __name__ == "__main__":
    main()
