"""A tree as plain data, and back. The data is what ``json`` can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId, RequestId
from prefixpilot.errors import InvalidRequestError, InvariantError
from prefixpilot.index.invariants import check_tree
from prefixpilot.index.node import Node
from prefixpilot.index.tree import ContextIndex


def id_data(block: BlockId) -> int | str | dict[str, str]:
    """An identity as ``json`` can write it: bytes as ``{"hex": ...}``."""
    return {"hex": block.hex()} if isinstance(block, bytes) else block


def read_ids(values: Any, where: str) -> tuple[BlockId, ...]:
    """The identities that :func:`id_data` wrote.

    Raises:
        InvalidRequestError: ``values`` is no list of them.
    """
    if not isinstance(values, list):
        raise InvalidRequestError(where, "is no list of ids", "make the snapshot again")
    return tuple([value if type(value) in (int, str) else _bytes_id(value, where) for value in values])


def _bytes_id(value: Any, where: str) -> bytes:
    if isinstance(value, dict) and list(value) == ["hex"] and isinstance(value["hex"], str):
        try:
            return bytes.fromhex(value["hex"])
        except ValueError:
            pass
    raise InvalidRequestError(where, f"holds {value!r}", "make the snapshot again")


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
                "blocks": list(map(id_data, node.blocks)),
                "tokens": list(node.tokens),
                "distance": node.distance,
                "frequency": node.frequency,
                "requests": list(node.request_ids),
            }
        )
    return {"alpha": index.alpha, "nodes": nodes}


def restore_tree(data: Mapping[str, Any], *, grown: bool = False) -> ContextIndex:
    """The tree that :func:`tree_snapshot` described.

    Args:
        grown: demand a tree as ``insert`` grows it: nodes begin with their parents, and siblings differ at once.

    Raises:
        InvalidRequestError: ``data`` is not such a description; names the entry.
    """
    try:
        index = _restore(data)
        check_tree(index, prefixes=grown, distinct=grown)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"snapshot.{error.field}", error.reason, "make the snapshot again") from error
    except (KeyError, TypeError, IndexError, AttributeError, ArithmeticError, ValueError, InvariantError) as error:
        raise InvalidRequestError("snapshot", f"is not one of ours ({error!r})", "make it again") from error
    return index


def _restore(data: Mapping[str, Any]) -> ContextIndex:
    index = ContextIndex(PilotConfig(alpha=data["alpha"]).alpha)
    nodes: list[Node] = []
    tops: list[Node] = []
    assigned: list[tuple[Node, RequestId]] = []
    for place, entry in enumerate(data["nodes"]):
        where = f"nodes[{place}]"
        node = Node(
            read_ids(entry["blocks"], f"{where}.blocks"),
            tuple(_each(entry, "tokens", where, int)),
            float(entry["distance"]),
        )
        if len(node.tokens) != len(node.blocks):
            raise InvalidRequestError(f"{where}.tokens", "is no length for each block", "make the snapshot again")
        node.frequency = int(entry["frequency"])
        parent = entry["parent"]
        if type(parent) is not int or not -1 <= parent < place:
            raise InvalidRequestError(f"{where}.parent", f"is {parent!r}", "make the snapshot again")
        if parent == -1:
            tops.append(node)
        else:
            nodes[parent].attach(node)
        nodes.append(node)
        assigned.extend((node, RequestId(r)) for r in _each(entry, "requests", where, str))
    frequencies = [node.frequency for node in nodes]
    index.adopt(tops, assigned)
    for node, frequency in zip(nodes, frequencies, strict=True):
        node.frequency = frequency
    return index


def _each(entry: Mapping[str, Any], name: str, where: str, *kinds: type) -> list[Any]:
    values = entry[name]
    if not isinstance(values, list) or any(type(value) not in kinds for value in values):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidRequestError(f"{where}.{name}", f"is no list of {expected}", "make the snapshot again")
    if any(isinstance(value, int) and name == "tokens" and value < 0 for value in values):
        raise InvalidRequestError(f"{where}.{name}", "holds a length below 0", "make the snapshot again")
    return values
