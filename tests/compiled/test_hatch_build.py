"""The build hook: when it compiles, when it does not, and what it says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hatch_build
import pytest
from hatch_build import VARIABLE, CompileHook, hindrance

ROOT = Path(hatch_build.__file__).parent


class Told:
    """Hatchling's application, as far as the hook uses it."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)


def hook(told: Told, *files: str) -> CompileHook:
    config: Any = {
        "modules": [f for f in files if f.endswith(".py")],
        "kernels": [f for f in files if f.endswith(".c")],
    }
    nothing: Any = None
    application: Any = told
    return CompileHook(str(ROOT), config, nothing, nothing, "", "wheel", application)


def build_data() -> dict[str, Any]:
    return {"force_include": {}, "pure_python": True, "infer_tag": False}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("value", ["0", "1", None])
def test_an_editable_install_is_never_compiled(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    told, data = Told(), build_data()
    hook(told, "no_such_module.py").initialize("editable", data)
    assert (data, told.warnings) == (build_data(), [])


def test_a_pure_build_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    told, data = Told(), build_data()
    made = hook(told, "no_such_module.py")
    assert made.dependencies() == []
    made.initialize("standard", data)
    made.finalize("standard", data, "x.whl")
    assert data == build_data()
    assert len(told.warnings) == 1 and f"{VARIABLE}=0" in told.warnings[0]


def test_no_compiler_is_a_hindrance_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert hindrance() is not None
    told, data = Told(), build_data()
    made = hook(told, "no_such_module.py")
    assert made.dependencies() == []
    made.initialize("standard", data)
    assert data == build_data() and len(told.warnings) == 1
    monkeypatch.setenv(VARIABLE, "1")
    assert made.dependencies() == hatch_build.TOOLS


@pytest.mark.no_cover
@pytest.mark.skipif(hindrance() is not None, reason="nothing can be compiled here")
def test_a_build_that_fails_is_pure_unless_it_was_demanded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, data = Told(), build_data()
    hook(told, "no_such_module.py").initialize("standard", data)
    assert data == build_data() and len(told.warnings) == 1
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises((Exception, SystemExit)):
        hook(told, "no_such_module.py").initialize("standard", data)
    assert data == build_data() and len(told.warnings) == 1
    assert Path.cwd() != ROOT / "src"
    capsys.readouterr()


@pytest.mark.no_cover
@pytest.mark.skipif(hindrance() is not None, reason="nothing can be compiled here")
def test_what_is_compiled_stands_beside_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    data = build_data()
    made = hook(Told(), "pilot/gate.py", "distance/_overlaps.c")
    made.initialize("standard", data)
    places = sorted(data["force_include"].values())
    stems = [f"prefixpilot/{stem}." for stem in ("_compiled__mypyc", "distance/_overlaps", "pilot/gate")]
    assert [place.partition(".")[0] + "." for place in places] == stems
    assert all(Path(source).is_file() for source in data["force_include"])
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    made.finalize("standard", data, "x.whl")
    assert not any(Path(source).exists() for source in data["force_include"])
