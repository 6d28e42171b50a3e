"""Names the machine a figure was taken on. A figure without it is worth nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefixpilot import COMPILED

RESULTS = Path(os.environ.get("PREFIXPILOT_RESULTS", Path(__file__).parent / "results"))


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    load: float
    system: str
    python: str
    numpy: str
    compiled: bool
    revision: str


def this_machine() -> Machine:
    """CPU model, usable cores, one-minute load, the versions that matter, and whether the package is compiled."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan"),
        system=f"{platform.system()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        numpy=version("numpy"),
        compiled=COMPILED,
        revision=_revision(),
    )


def _revision() -> str:
    """The commit, with a plus where files differ from it; unknown outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or "unknown"
    lines = info.read_text(encoding="utf-8").split("\n")
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def save(name: str, result: dict[str, Any]) -> Path:
    """Write ``results/NAME.json`` with the machine named, print it, and return its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"{name}.json"
    text = json.dumps({"machine": asdict(this_machine()), **result}, indent=2) + "\n"
    target.write_text(text, encoding="utf-8")
    print(text, end="")
    return target
