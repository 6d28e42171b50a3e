"""``prefixpilot plan --ray``: a workload in parts, planned side by side; what is done of it outlives a stop."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prefixpilot.cli.options import pilot_config
from prefixpilot.cli.outputs import STDOUTS, Output
from prefixpilot.errors import ConfigError

if TYPE_CHECKING:
    from prefixpilot.ray.parts import PlannedPart
    from prefixpilot.workloads import Workload
    from prefixpilot.workloads.planned import PlanCounts

PARTS: Final = ".parts"
PER_CORE: Final = 4
LEAST: Final = 2_000
"""Requests of a part, about, if nobody says how many parts: smaller ones lose what requests share."""


def check_ray_flags(args: argparse.Namespace) -> None:
    """Raises ConfigError: flags that do not go together."""
    if not args.ray:
        for name in ("parts", "keep_parts"):
            if getattr(args, name):
                raise ConfigError(f"--{name.replace('_', '-')}", "goes with --ray only", "add --ray")
        return
    if args.save_index is not None:
        raise ConfigError("--save-index", "goes without --ray: each part has an index of its own", "leave one out")
    if args.output in STDOUTS:
        raise ConfigError("-o", "is needed with --ray: what is done is kept beside that file", "add -o OUT")


def plan_by_ray(args: argparse.Namespace, workload: Workload, out: Output) -> PlanCounts:
    """Plan the workload in parts and write it to ``out``, part by part. Returns what it comes to.

    Parts that an earlier run has left, of the same input and settings, are not planned again.
    """
    from prefixpilot.cli.progress import progress
    from prefixpilot.ray.parts import digest_of, parts_of
    from prefixpilot.ray.planning import cluster, plan_parts

    config, entries = pilot_config(args), workload.requests
    with cluster() as cores:
        parts = parts_of(entries, args.parts or max(1, min(PER_CORE * cores, len(entries) // LEAST)), config)
        folder = _Folder(Path(args.output + PARTS), digest_of(_digest(args.trace), config, parts))
        missing = [number for number in range(len(parts)) if not folder.has(number)]
        with progress("planning", len(entries)) as advance:
            advance(len(entries) - sum(len(parts[number]) for number in missing))

            def done(number: int, planned: PlannedPart) -> None:
                folder.write(missing[number], planned)
                advance(planned.counts.requests)

            plan_parts([[entries[i] for i in parts[number]] for number in missing], config, done, cores + 1)
    counts = folder.copy(range(len(parts)), out)
    if not args.keep_parts:
        folder.remove()
    return counts


def _digest(trace: str) -> bytes:
    """Of the files of a trace."""
    path, said = Path(trace), blake2b(digest_size=16)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    said.update(piece)
    return said.digest()


class _Folder:
    """Planned parts on disk. Each is there whole or not at all."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest = path, digest
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError("-o", f"{path} cannot be made ({reason})", "choose another OUT") from None

    def _names(self, number: int) -> tuple[Path, Path]:
        stem = f"part-{number:05}-{self._digest}"
        return self._path / f"{stem}.jsonl", self._path / f"{stem}.json"

    def has(self, number: int) -> bool:
        return all(path.exists() for path in self._names(number))

    def write(self, number: int, planned: PlannedPart) -> None:
        counts = json.dumps(asdict(planned.counts)).encode("ascii")
        for path, data in zip(self._names(number), (planned.lines, counts), strict=True):
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(data)
            temporary.replace(path)

    def copy(self, numbers: Sequence[int], out: Output) -> PlanCounts:
        """All parts one behind the other; returns their counts in all."""
        from prefixpilot.workloads.planned import PlanCounts

        counts = PlanCounts()
        for number in numbers:
            lines, told = self._names(number)
            with lines.open("rb") as stream:
                out.copy(stream)
            counts += PlanCounts(**json.loads(told.read_bytes()))
        return counts

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
