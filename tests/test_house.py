"""The house: what an import loads, how long a file is, what the pure floors may see, and that versions agree."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import prefixpilot

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prefixpilot"
FILES = sorted(PACKAGE.rglob("*.py"))

PURE_ROOMS = (
    (
        "errors",
        "constraints",
        "pieces",
        "jsontext",
        "core",
        "config",
        "blocks",
        "distance",
        "annotations",
        "request_ids",
    ),
    ("index", "conversation", "prefix_cache", "apis"),
    ("residency",),
    ("ordering", "scheduling", "dedup", "prompts", "tails", "providers", "volatile"),
    ("pilot",),
)
"""Floors 0 to 3: sans-I/O."""

IMPURE = {
    *("asyncio", "http", "multiprocessing", "os", "random", "secrets", "selectors", "shutil", "signal", "socket"),
    *("subprocess", "tempfile", "threading", "time", "urllib", "uuid"),
    *("aiohttp", "prometheus_client", "starlette", "uvicorn", "xllamacpp"),
}

HEAVY = {
    *("numpy", "tqdm", "aiohttp", "starlette", "uvicorn", "prometheus_client", "xllamacpp", "gguf"),
    *("asyncio", "socket", "opentelemetry", "sqlite3", "zmq", "msgspec"),
    *("bm25s", "faiss", "wordllama", "elasticsearch", "opensearchpy", "mem0"),
}


ONE_LOCK = {"pilot/context_pilot.py": {"threading"}}
"""The façade holds the lock; nothing below it knows of threads."""


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _pure_files() -> list[Path]:
    rooms = {room for floor in PURE_ROOMS for room in floor}
    return [path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in rooms]


def imported(source: str) -> Iterator[str]:
    """Top-level names of all modules that a source text imports, in functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def prints(source: str) -> list[int]:
    """Lines that call ``print``."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_import_loads_no_third_party_package_and_no_event_loop() -> None:
    code = (
        "import sys; before = set(sys.modules); import prefixpilot, json; "
        "print(json.dumps(sorted({m.partition('.')[0] for m in set(sys.modules) - before})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(run.stdout))
    assert "prefixpilot" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded.intersection(HEAVY))
    assert loaded - {"prefixpilot"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_file_is_over_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").split("\n")) <= 400


@pytest.mark.parametrize("path", _pure_files(), ids=_name)
def test_floors_0_to_3_do_no_io(path: Path) -> None:
    impure = IMPURE - ONE_LOCK.get(_name(path), set())
    assert sorted(impure.intersection(imported(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("room", [room for floor in PURE_ROOMS for room in floor])
def test_the_rooms_of_floors_0_to_3_stand_where_the_list_says(room: str) -> None:
    assert (PACKAGE / f"{room}.py").is_file() or (PACKAGE / room / "__init__.py").is_file()


@pytest.mark.parametrize("path", [p for p in FILES if p.relative_to(PACKAGE).parts[0] != "cli"], ids=_name)
def test_only_the_commands_print(path: Path) -> None:
    assert prints(path.read_text(encoding="utf-8")) == []


def test_the_readers_of_this_file_can_see() -> None:
    assert list(imported("def f():\n    from socket import create_connection\n    import os.path")) == ["socket", "os"]
    assert prints("def f():\n    print(1)") == [2]


def test_version_is_the_newest_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+[^\]]*)\] - \d{4}-\d{2}-\d{2}$", changelog, flags=re.MULTILINE)
    assert versions[0] == prefixpilot.__version__


def test_structure_names_every_module() -> None:
    text = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    missing = [_name(p) for p in FILES if p.name != "__init__.py" and f"`{_name(p)}`" not in text]
    assert missing == []
