"""Builds what is named in ``pyproject.toml`` when a wheel is built and a C compiler is there.

Modules are compiled by mypyc from their only source: the ``.py`` files stay in the wheel beside what was made of them,
and are what runs where nothing was made. Kernels are C; where they were not made, NumPy does the same.
Editable installs are never compiled, so that a developer never meets an extension that is older than its source.

PREFIXPILOT_COMPILE: ``0`` never, ``1`` always (a build that cannot compile fails), else where it can.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "PREFIXPILOT_COMPILE"
LIBRARY = "prefixpilot._compiled"
"""What all compiled modules share stands in one library, beside the package's own modules."""
TOOLS = ["mypy[mypyc]==2.4.*", "setuptools>=65"]
LOOSE = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file="]
"""mypy has checked the sources already, with all their dependencies; here it reads their types and no more."""
EXACT = [] if sys.platform == "win32" else ["-ffp-contract=off"]
"""Sums and products of kernels are rounded one by one, as NumPy rounds them."""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """``modules`` and ``kernels`` (in ``pyproject.toml``): what to compile, relative to ``src/prefixpilot``."""

    _made: Path | None = None

    def dependencies(self) -> list[str]:
        """What compiling needs, where there will be any."""
        return TOOLS if _forced() or hindrance() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a temporary folder, and add what came of it to the wheel."""
        if version == "editable":
            return
        reason = None if _forced() else hindrance()
        if reason is None:
            reason = self._add_compiled(build_data)
        if reason is not None:
            self.app.display_warning(f"prefixpilot: pure Python, about 1.5 times slower per plan: {reason}")

    def _add_compiled(self, build_data: dict[str, Any]) -> str | None:
        """Why it could not be done; ``None`` if it was."""
        made = Path(tempfile.mkdtemp(prefix="prefixpilot-"))
        try:
            libraries = compiled(Path(self.root), self.config["modules"], self.config.get("kernels", []), made)
        except (Exception, SystemExit) as error:  # mypyc and setuptools end with either
            shutil.rmtree(made)
            if _forced():
                raise
            return f"compiling failed ({error})"
        self._made = made
        build_data["force_include"].update(libraries)
        build_data.update(pure_python=False, infer_tag=True)
        return None

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has them now."""
        if self._made is not None:
            shutil.rmtree(self._made)


def _forced() -> bool:
    return os.environ.get(VARIABLE) == "1"


def hindrance() -> str | None:
    """Why this interpreter cannot compile; ``None`` if nothing is in the way."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python.h is not installed (python3-dev)"
    compiler = (sysconfig.get_config_var("CC") or "cl").split()[0]
    if sys.platform != "win32" and shutil.which(os.environ.get("CC", compiler).split()[0]) is None:
        return f"the C compiler {compiler} is not installed"
    return None


def compiled(root: Path, modules: list[str], kernels: list[str], made: Path) -> dict[str, str]:
    """The libraries made of these files of ``src/prefixpilot``, each with its place in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Extension, setup

    here = Path.cwd()
    os.chdir(root / "src")  # mypy names modules, and setuptools their sources, from here
    try:
        paths = [f"prefixpilot/{module}" for module in modules]
        extensions = mypycify(
            [*LOOSE, f"--cache-dir={made / 'mypy'}", *paths],
            debug_level="0",
            group_name=LIBRARY,
            target_dir=str(made / "c"),
        )
        for kernel in kernels:
            name = f"prefixpilot.{kernel.removesuffix('.c').replace('/', '.')}"
            extensions.append(Extension(name, [f"prefixpilot/{kernel}"], extra_compile_args=EXACT))
        libraries = made / "libraries"
        places = [f"--build-lib={libraries}", f"--build-temp={made / 'o'}"]
        setup(name="prefixpilot", packages=[], ext_modules=extensions, script_args=["--quiet", "build_ext", *places])
    finally:
        os.chdir(here)
    found = [path for path in libraries.rglob("*") if path.is_file()]
    return {str(path): path.relative_to(libraries).as_posix() for path in found}
