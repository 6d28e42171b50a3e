"""A mirror of a tree in compiled memory, for look-ups (decision 0049). A pure build has none."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from prefixpilot.index.node import Node

try:
    kernels: Any = import_module("prefixpilot.index._prefixes")
except ImportError:
    kernels = None


class Mirror:
    """What the nodes of a tree hold, by numbers, in one line of memory each.

    A tree is told of here as it changes. One that is not grown by prefixes (siblings that begin alike, a node that does
    not begin with its parent's blocks) or has lengths of 2^60 tokens is mirrored no longer. Not thread-safe.

    Attributes:
        kernel: has ``match(blocks)`` and ``locate(blocks)``, which return a node and how many of its blocks match, as
            those of :mod:`prefixpilot.index.match` find them; ``None`` where there is no mirror.
    """

    def __init__(self, root: Node) -> None:
        self.kernel: Any = None if kernels is None else kernels.Prefixes(root)

    def attached(self, node: Node) -> None:
        """A node without children stands below its parent. O(own blocks)."""
        if self.kernel is None:
            return
        above = node.parent
        number = -1
        if above is not None and node.start == len(above.blocks):
            number = self.kernel.attach(above.number, node, node.blocks, node.tokens)
        self._number(node, number)

    def detached(self, node: Node) -> None:
        """A node without children has left."""
        if self.kernel is not None:
            self.kernel.detach(node.number)

    def split(self, middle: Node, old: Node) -> None:
        """``middle`` stands where ``old`` stood, and has it as its only child. O(own blocks)."""
        if self.kernel is None:
            return
        number = -1
        if middle.own and old.start == len(middle.blocks):
            number = self.kernel.split(old.number, middle, len(middle.blocks))
        self._number(middle, number)

    def joined(self, node: Node, child: Node) -> None:
        """``child``, the only one of ``node``, stands in its place. O(own blocks)."""
        if self.kernel is not None:
            self.kernel.join(node.number, child.number, child.tokens)

    def _number(self, node: Node, number: int) -> None:
        node.number = number
        if number < 0:
            self.kernel = None
