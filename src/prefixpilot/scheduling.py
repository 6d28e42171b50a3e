"""Order between requests: Algorithm 5 of the paper, and a depth-first walk of the tree.

Both take search paths as ordering computed them (no second look-up in the tree) and return a permutation of
``range(len(paths))``. Ties keep arrival order. A path is a non-empty tuple; its first element names the region of the
cache, the elements of one position must be comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

SearchPath: TypeAlias = tuple[Any, ...]


def schedule_by_group(paths: Sequence[SearchPath]) -> tuple[int, ...]:
    """Algorithm 5: group by the first element of the path, longest paths first in a group, largest groups first.

    O(n) for grouping, O(n log n) in all.

    >>> schedule_by_group([(0, 0, 2), (0, 1), (1,), (0, 0, 3)])
    (0, 3, 1, 2)
    """
    groups: dict[Any, list[int]] = {}
    for request, path in enumerate(paths):
        groups.setdefault(path[0], []).append(request)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return tuple(request for group in ordered for request in sorted(group, key=lambda i: -len(paths[i])))


def schedule_depth_first(paths: Sequence[SearchPath]) -> tuple[int, ...]:
    """The leaves in depth-first order, so that every prefix is used up before it can be evicted. O(n log n).

    No reuse that the tree offers is lost under LRU, whatever the cache size, if it holds one request.

    >>> schedule_depth_first([(0, 0, 2), (0, 1), (1,), (0, 0, 3)])
    (0, 3, 1, 2)
    """
    return tuple(sorted(range(len(paths)), key=lambda i: paths[i]))
