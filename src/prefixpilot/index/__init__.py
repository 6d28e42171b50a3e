"""The context index (paper 4): a tree of the prefixes that the engine's cache holds."""

from prefixpilot.index.build import build
from prefixpilot.index.invariants import check_tree
from prefixpilot.index.node import Node
from prefixpilot.index.snapshot import restore_tree, tree_snapshot
from prefixpilot.index.tree import ContextIndex, Match

__all__ = ["ContextIndex", "Match", "Node", "build", "check_tree", "restore_tree", "tree_snapshot"]
