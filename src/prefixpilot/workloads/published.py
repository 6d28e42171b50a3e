"""Public data sets by name: ``multihoprag:PATH``; with 5 blocks a question ``multihoprag/5:PATH``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prefixpilot.errors import TraceError
from prefixpilot.workloads import locomo, mtrag, multihoprag, narrativeqa, qasper
from prefixpilot.workloads.base import Workload
from prefixpilot.workloads.hub import Hub
from prefixpilot.workloads.questions import QuestionSet

TOP_K: Final = 15
"""Blocks found for a question, as in the paper."""
FROM_HUB: Final = "hub"


class _Reader(NamedTuple):
    """How a set is read.

    Attributes:
        of_hub, hub: from the hub, and its name there; ``None``: it is not there.
    """

    read: Callable[[Path], QuestionSet]
    of_hub: Callable[[Hub], QuestionSet] | None = None
    hub: str = ""


_READERS: Final[Mapping[str, _Reader]] = {
    "locomo": _Reader(locomo.read),
    "mtrag": _Reader(mtrag.read),
    "multihoprag": _Reader(multihoprag.read, multihoprag.of_hub, multihoprag.HUB),
    "narrativeqa": _Reader(narrativeqa.read, narrativeqa.of_hub, narrativeqa.HUB),
    "qasper": _Reader(qasper.read, qasper.of_hub, qasper.HUB),
}
_NAMED: Final = re.compile(rf"({'|'.join(_READERS)})(?:/([1-9]\d*))?:(.+)")


def is_published(text: str) -> bool:
    """Whether a text names a data set and where it lies."""
    return _NAMED.fullmatch(text) is not None


def read_published(text: str) -> Workload:
    """The workload that ``NAME:PATH`` or ``NAME:hub`` names; blocks by BM25, or as the set brings them.

    Raises:
        TraceError: its files are missing or not as published, or it is not on the hub.
        MissingExtraError: `bm25s` or `datasets` is needed and not installed.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise TraceError(text, "names no data set", f"use one of {', '.join(_READERS)}, a colon, and a path")
    name, k, place = match.groups()
    reader = _READERS[name]
    if place != FROM_HUB:
        found = reader.read(_existing(place))
    elif reader.of_hub is None:
        raise TraceError(text, "is not on the hub", f"give the path of the files: {name}:PATH")
    else:
        found = reader.of_hub(Hub(reader.hub))
    return found.workload(text, int(k or TOP_K))


def _existing(place: str) -> Path:
    path = Path(place)
    if not path.exists():
        raise TraceError(place, "does not exist", "give the file or folder of the data set")
    return path
