"""A tree as plain data, and back. The data is what ``json`` can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixpilot.core import RequestId
from prefixpilot.errors import InvalidRequestError, InvariantError
from prefixpilot.index.invariants import check_tree
from prefixpilot.index.node import Node
from prefixpilot.index.tree import ContextIndex


def tree_snapshot(index: ContextIndex) -> dict[str, Any]:
    """The tree below the root, nodes in depth-first order with the place of their parent. O(nodes x blocks)."""
    nodes: list[dict[str, Any]] = []
    stack: list[tuple[Node, int]] = [(child, -1) for child in reversed(index.root.children.values())]
    while stack:
        node, parent = stack.pop()
        stack.extend((child, len(nodes)) for child in reversed(node.children.values()))
        nodes.append(
            {
                "parent": parent,
                "blocks": list(node.blocks),
                "tokens": list(node.tokens),
                "distance": node.distance,
                "frequency": node.frequency,
                "requests": list(node.request_ids),
            }
        )
    return {"alpha": index.alpha, "nodes": nodes}


def restore_tree(data: Mapping[str, Any]) -> ContextIndex:
    """The tree that :func:`tree_snapshot` described.

    Raises:
        InvalidRequestError: ``data`` is not such a description; names the entry.
    """
    try:
        index = _restore(data)
        check_tree(index, prefixes=False)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"snapshot.{error.field}", error.reason, "make the snapshot again") from error
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, InvariantError) as error:
        raise InvalidRequestError("snapshot", f"is not one of ours ({error!r})", "make it again") from error
    return index


def _restore(data: Mapping[str, Any]) -> ContextIndex:
    index = ContextIndex(float(data["alpha"]))
    nodes: list[Node] = []
    tops: list[Node] = []
    assigned: list[tuple[Node, RequestId]] = []
    for place, entry in enumerate(data["nodes"]):
        node = Node(tuple(entry["blocks"]), tuple(entry["tokens"]), float(entry["distance"]))
        parent = entry["parent"]
        if not -1 <= parent < place:
            raise InvalidRequestError(f"nodes[{place}].parent", f"is {parent}", "make the snapshot again")
        if parent == -1:
            tops.append(node)
        else:
            nodes[parent].attach(node)
        nodes.append(node)
        assigned.extend((node, RequestId(r)) for r in entry["requests"])
    index.adopt(tops, assigned)
    for node, entry in zip(nodes, data["nodes"], strict=True):
        node.frequency = int(entry["frequency"])
    return index
