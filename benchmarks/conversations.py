"""Conversations by the hundred thousand through the pipeline; every prompt that would reach the engine is judged.

    python -m benchmarks.conversations [--conversations 100000] [--seed 1 2] [--share 0.5] [--every 5000]

A conversation is what one client has under one id, or with one application: some requests, branches, retries, tool
loops. One to three clients talk at a time, and some 200 such groups share one proxy, its index and its ledgers. The
conversations are those of `tests/differential`: `blocks` have `context_blocks`, `ordinary` ones are applications and
agents that know nothing of the proxy; `--share` is the share of groups with blocks. The judge knows the documented
wording only. Runs in one process, without sockets (`tests/differential` has some on the wire); the same seed gives the
same conversations. A finding names seed and number, to be seen again by `tests.differential.runs.converse`.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.machine import save
from tests.differential.reading import KINDS
from tests.differential.runs import PER_PROXY, Finding, Run, Script

SHOWN = 20


@dataclass(slots=True)
class Tally:
    """What has been found so far."""

    seen: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    fail_opens: float = 0

    def result(self) -> dict[str, Any]:
        counts = Counter(finding.violation.kind for finding in self.findings)
        shown = [
            {"seed": f.seed, "number": f.number, "script": f.script, "what": str(f.violation)[:300]}
            for f in self.findings[:SHOWN]
        ]
        return {
            "broken": {kind: counts[kind] for kind in KINDS},
            "errors_of_ours": self.fail_opens,
            "seen": dict(sorted(self.seen.items())),
            "findings": shown,
        }


def conversations(seed: int, wanted: int, share: float, tally: Tally) -> Iterator[int]:
    """Talks until so many conversations have been had; yields how many there were."""
    run = Run(seed, seen=tally.seen)
    before = tally.seen["clients"]
    number = had = 0
    while had < wanted:
        finding = run.converse(_script(seed, number // PER_PROXY, share), number)
        if finding is not None:
            tally.findings.append(finding)
            print(f"seed {seed}, number {finding.number}: {finding.violation}", file=sys.stderr, flush=True)
        had = tally.seen["clients"] - before
        number += 1
        yield had
    run.close()
    tally.fail_opens += run.fail_opens


def _script(seed: int, proxy: int, share: float) -> Script:
    """A proxy serves one kind, so that its index is met by many requests of that kind."""
    return "blocks" if Random(f"script {seed}/{proxy}").random() < share else "ordinary"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=100_000, help="of all seeds together")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=5000)
    parser.add_argument("--name", default="conversations", help="of the result")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    tally = Tally()
    began, cpu = time.monotonic(), time.process_time()
    done = 0
    for seed in args.seed:
        reported = had = 0
        for had in conversations(seed, -(-args.conversations // len(args.seed)), args.share, tally):
            if had - reported >= args.every:
                reported = had
                _progress(seed, had, time.monotonic() - began, done, len(tally.findings))
        done += had
    seconds = time.monotonic() - began
    save(
        args.name,
        {
            "workload": vars(args),
            "conversations": done,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "conversations_per_second": round(done / seconds, 1),
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            **tally.result(),
        },
    )
    return 1 if tally.findings or tally.fail_opens else 0


def _progress(seed: int, had: int, seconds: float, before: int, findings: int) -> None:
    rate = (before + had) / seconds
    print(f"seed {seed}: {had} conversations, {rate:.0f} a second, {findings} findings", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
