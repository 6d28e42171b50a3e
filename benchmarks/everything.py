"""Every table that can be made here, one step after the other, then the page: what `make bench` runs.

    python -m benchmarks.everything [FOLDER] [--smoke] [--from STEP]

FOLDER holds traces (else generated ones). Under an hour on two cores. A step that fails is named at the end, and the
others run. `--from` goes on where an earlier run was ended. `--smoke`: everything small, under a minute, into a folder
that is removed afterwards; it tells whether the steps work, its figures say nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.inputs import VARIABLE


class Step(NamedTuple):
    """One script.

    Attributes:
        module: of this folder.
        options: for the whole run, and for the smoke test; ``None``: it is left out there.
        traces: whether it takes a folder of traces.
    """

    module: str
    options: tuple[str, ...] = ()
    smoke: tuple[str, ...] | None = None
    traces: bool = False


STEPS: Final = (
    Step("import_time"),
    Step("plan_and_optimize"),
    Step("ordering", smoke=("--only", "disjoint", "--caches", "4"), traces=True),
    Step("optimum", traces=True),
    Step("scale", ("--shared", "12000", "--paper", "2000", "12000"), ("--shared", "60", "--paper", "60")),
    Step("request_cost", ("--rounds", "10")),
    Step("paper", smoke=("--smoke",), traces=True),
    Step("engine", ("--requests", "100"), traces=True),
    Step("tables", smoke=()),
)


def run(step: Step, smoke: bool, folder: Path | None, environment: Mapping[str, str], out: Path | None) -> bool:
    """Whether it ended well."""
    options: Sequence[str] = (step.smoke or ()) if smoke else step.options
    given = [str(folder)] if step.traces and folder is not None else []
    page = ["--out", str(out)] if step.module == "tables" and out is not None else []
    command = [sys.executable, "-m", f"benchmarks.{step.module}", *given, *options, *page]
    print(f"\n== {' '.join(command[1:])}", flush=True)
    start = time.perf_counter()
    status = subprocess.run(command, env=dict(environment), stdout=subprocess.DEVNULL if smoke else None).returncode
    print(f"== {step.module}: {time.perf_counter() - start:.0f} s, exit status {status}", flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Every table that can be made here.")
    parser.add_argument("traces", nargs="?", type=Path, default=os.environ.get(VARIABLE) or None, metavar="FOLDER")
    parser.add_argument("--smoke", action="store_true", help="everything small")
    parser.add_argument("--from", dest="first", choices=[step.module for step in STEPS], help="skip what is before")
    args = parser.parse_args()
    steps = [step for step in STEPS if not args.smoke or step.smoke is not None]
    if args.first:
        steps = steps[[step.module for step in steps].index(args.first) :]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with tempfile.TemporaryDirectory() as scratch:
        if args.smoke:
            environment["PREFIXPILOT_RESULTS"] = scratch
        out = Path(scratch) / "docs" if args.smoke else None
        folder = None if args.smoke else args.traces
        failed = [step.module for step in steps if not run(step, args.smoke, folder, environment, out)]
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall steps ended well")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
