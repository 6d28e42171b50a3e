"""SGLang's own RadixCache, in a process of its own: for tests and benchmarks that want it. No GPU.

It does not belong to this package's environment (it wants torch). Its interpreter and where it lies are named by two
environment variables, which ``make test-sglang`` sets.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PYTHON_VARIABLE = "PREFIXPILOT_SGLANG_PYTHON"
PATH_VARIABLE = "PREFIXPILOT_SGLANG_PATH"
SIDE = Path(__file__).with_name("side.py")
Prompt = Sequence[tuple[int, int]]
"""Runs of token ids: the first of each, and how many."""


class RadixCacheProcess:
    """One cache after another; ``do`` is a job of :class:`tests.sglang.side.Cache`.

    Args:
        python: an interpreter that has torch, and pyzmq if events are to be published.
        directory: where SGLang lies.
    """

    def __init__(self, python: str, directory: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(SIDE), directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def do(self, job: str, **arguments: Any) -> Any:
        """Its answer. Raises RuntimeError if the process has ended: what it said is on stderr."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": job, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"SGLang's process ended with {self._process.wait(timeout=60)}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def __enter__(self) -> RadixCacheProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
