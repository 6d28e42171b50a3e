"""Time and memory of ``prefixpilot analyze`` on a generated log.

    python -m benchmarks.analyze [--megabytes 100] [--bad 0.02]

Chats over 400 documents as applications write them, a clock in the system prompt, three in ten with a second turn, some
lines cut off. The command runs as a process of its own; the memory is the largest of its processes, and their sum is
bounded by that times their number.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import save


def write_log(path: Path, size: int, bad: float) -> dict[str, int]:
    """A log of about so many bytes."""
    rng = random.Random(1)
    words = [f"w{i}" for i in range(5000)]
    documents = [f"Title {i}\n" + " ".join(rng.choices(words, k=500)) for i in range(400)]
    written = requests = cut = 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            for body in _bodies(rng, documents, requests):
                line = json.dumps({"custom_id": str(requests), "url": "/v1/chat/completions", "body": body})
                if rng.random() < bad:
                    line, cut = line[: len(line) // 2], cut + 1
                else:
                    requests += 1
                file.write(line + "\n")
                written += len(line) + 1
    return {"bytes": written, "requests": requests, "bad_lines": cut}


def _bodies(rng: random.Random, documents: list[str], number: int) -> list[dict[str, Any]]:
    chosen = rng.sample(range(400 if rng.random() < 0.5 else 40), 12)
    units = (
        f"<document>\n<source>d{i}.md</source>\n<document_content>\n{documents[i]}\n</document_content>\n</document>"
        for i in chosen
    )
    clock = f"{9 + number % 9:02d}:{number % 60:02d}:{number * 7 % 60:02d}"
    system = f"You are helpful.\nCurrent time: 2026-11-30 {clock}\n" + "Follow the rules. " * 100
    asked = "<documents>\n" + "\n".join(units) + f"\n</documents>\n\nQuestion {number}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    bodies = [{"model": "gpt-4o", "messages": messages}]
    if rng.random() < 0.3:
        more = [{"role": "assistant", "content": "An answer."}, {"role": "user", "content": "And more?"}]
        bodies.append({"model": "gpt-4o", "messages": messages + more})
    return bodies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--bad", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, page = Path(folder) / "log.jsonl", Path(folder) / "report.html"
        wrote = write_log(log, round(args.megabytes * 1e6), args.bad)
        start = time.perf_counter()
        command = [sys.executable, "-m", "prefixpilot.cli", "analyze", str(log), "--html", str(page), "--json"]
        ran = subprocess.run(command, check=True, capture_output=True)
        wall = time.perf_counter() - start
        found = json.loads(ran.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    arms = {arm["name"]: round(arm["hit_rate"], 4) for arm in found["arms"]}
    result = {
        **wrote,
        "wall_s": round(wall, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "largest_process_mib": round(used.ru_maxrss / 1024),
        "read": {"requests": found["requests"], "bad_lines": found["bad_lines"]},
        "hit_rates": arms,
    }
    print(json.dumps(result, indent=1))
    save("analyze", result)


if __name__ == "__main__":
    main()
