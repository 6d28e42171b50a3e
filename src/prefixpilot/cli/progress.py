"""A progress bar on stderr, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Within the block, a bar over ``total`` steps; call what it gives after each, with how many."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit=" requests", disable=None, leave=False) as bar:
        yield bar.update
