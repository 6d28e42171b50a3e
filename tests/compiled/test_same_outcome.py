"""Compiled code does what the source says: the same plans and the same state, step by step, as the pure build.

`make test-compiled` runs these, and the tests of the rooms that are compiled, on the compiled build.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.compiled.workloads import CONFIGS, distinct_neighbours, steps

import prefixpilot

ROOT = Path(__file__).resolve().parents[2]
with (ROOT / "pyproject.toml").open("rb") as file:
    MODULES = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]


def pure_outcome() -> Any:
    """What the sources do, in a process of their own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tests.compiled.workloads"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(run.stdout)


@pytest.mark.skipif(not prefixpilot.COMPILED, reason="this is the pure build: make test-compiled")
def test_every_step_is_that_of_the_pure_build() -> None:
    pure = pure_outcome()
    assert not pure["compiled"]
    for name, config in CONFIGS.items():
        ours = steps(config, 7)
        same = [one == other for one, other in zip(ours, pure["steps"][name], strict=True)]
        assert all(same), f"{name}: from step {same.index(False)} on"


@pytest.mark.no_cover
def test_the_workloads_are_repeatable_and_do_not_stand_still() -> None:
    done = {name: steps(CONFIGS[name], 3) for name in ("default", "bounded")}
    for name, once in done.items():
        assert once == steps(CONFIGS[name], 3)
        assert distinct_neighbours(once) > 0.9 * len(once)
    assert done["default"] != steps(CONFIGS["default"], 4)


@pytest.mark.parametrize("module", MODULES)
def test_all_listed_modules_are_compiled_or_none_is(module: str) -> None:
    name = f"prefixpilot/{module}".removesuffix(".py").replace("/", ".")
    loaded = importlib.import_module(name).__file__
    assert loaded is not None
    assert loaded.endswith(".py") != prefixpilot.COMPILED
