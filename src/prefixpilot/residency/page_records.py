"""What a page table is made of, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from prefixpilot.cache_events import PageHash
from prefixpilot.errors import ConfigError

Key: TypeAlias = bytes | tuple[PageHash]
"""A page's key below its parent, or, where that is not known or taken by another page, its own name."""
Children: TypeAlias = "dict[Key, Page]"


class Page:
    """A page that is held, or was until lately.

    Attributes:
        parent: name of the page before it; ``None`` at the start of a prompt.
        key: under which it stands among its parent's children.
        copies: in the medium that the engine computes from. An engine may compute one page twice and hold both.
        lower: copies in lower tiers, by medium; ``None`` for none.
        came: sequence of the batch that made the first of ``copies``.
        past: earlier stays that are remembered, as (came, gone); ``None`` for none.
        epoch: of the table, when it was last certain that the engine holds it.
        children: pages that follow it.
    """

    __slots__ = ("came", "children", "copies", "epoch", "key", "lower", "name", "parent", "past")

    def __init__(self, name: PageHash, parent: PageHash | None, key: Key) -> None:
        self.name = name
        self.parent = parent
        self.key = key
        self.copies = 0
        self.lower: dict[str, int] | None = None
        self.came = -1
        self.past: list[tuple[int, int]] | None = None
        self.epoch = 0
        self.children: Children | None = None

    def add_lower(self, medium: str) -> None:
        """One copy more in a lower tier."""
        self.lower = self.lower or {}
        self.lower[medium] = self.lower.get(medium, 0) + 1

    def drop_lower(self, medium: str) -> None:
        """One copy fewer in a lower tier, which has one."""
        assert self.lower is not None
        self.lower[medium] -= 1
        if not self.lower[medium]:
            del self.lower[medium]
        self.lower = self.lower or None

    def was_held(self, sequence: int) -> bool:
        """Whether the engine could compute from it once the batch of that number had been applied."""
        if self.copies and self.came <= sequence:
            return True
        return self.past is not None and any(came <= sequence < gone for came, gone in self.past)


class Tombstone(NamedTuple):
    """The end of a page's stay; ``gone``: sequence of the batch that removed it."""

    page: Page
    gone: int


class PrefixMatch(NamedTuple):
    """What an engine holds of a prompt.

    Attributes:
        tokens: of its longest prefix that the engine can compute from.
        lower_tokens: the same with the help of lower tiers; never fewer.
        pages: names of the pages of ``tokens``.
        certain: nothing that was forgotten since could have made it another.
    """

    tokens: int
    lower_tokens: int
    pages: tuple[PageHash, ...]
    certain: bool


class Applied(NamedTuple):
    """What a batch changed.

    Attributes:
        removed: pages that the engine can no longer compute from, in order. Not told one by one if all are gone.
        cleared: all that was held at some moment of the batch is gone.
    """

    removed: tuple[PageHash, ...] = ()
    cleared: bool = False


@dataclass(slots=True)
class PageCounts:
    """What a table has met since it was made.

    Attributes:
        stored, removed: pages told of, copies counted each.
        unknown_removals: removals of pages that the table did not know as held.
        repeated_batches: batches that had been applied already.
        missing_batches: numbers that were left out.
        other_groups: pages of groups that do not decide.
        other_sizes: pages of another size than the first.
        untold: pages that came without their tokens.
        alike: pages that no key tells from another below the same parent; the newest one is found.
        dropped: pages given up to keep a bound.
    """

    stored: int = 0
    removed: int = 0
    unknown_removals: int = 0
    repeated_batches: int = 0
    missing_batches: int = 0
    other_groups: int = 0
    other_sizes: int = 0
    untold: int = 0
    alike: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class PageBounds:
    """How much a page table keeps, each 1 or more.

    Attributes:
        pages: in all, tombstones included. Tombstones go first, then orphans, then the tails of what came first.
        tombstones: removals that are remembered.
        orphans: pages whose parent is not known; those that have waited longest go first.

    Raises:
        ConfigError: a bound below 1.
    """

    pages: int = 2_000_000
    tombstones: int = 32_768
    orphans: int = 65_536

    def __post_init__(self) -> None:
        for name in ("pages", "tombstones", "orphans"):
            bound = getattr(self, name)
            if type(bound) is not int or bound < 1:
                raise ConfigError(name, f"is {bound!r}", "use an int of 1 or more")


DEFAULT_BOUNDS: Final = PageBounds()
