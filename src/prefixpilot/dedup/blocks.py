"""De-duplication (Algorithm 3): which blocks of a context already stand in full earlier in the prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prefixpilot.core import BlockId, Place


def deduplicate(blocks: Sequence[BlockId], seen: Collection[BlockId] = ()) -> tuple[Place, ...]:
    """Where each block of a context, in prompt order, stands. Same length as ``blocks``. O(len), ``seen`` a set or map.

    >>> [place.value for place in deduplicate([1, 5, 2], {1, 2, 4})]
    ['earlier', 'here', 'earlier']
    """
    if not seen and len(set(blocks)) == len(blocks):
        return (Place.HERE,) * len(blocks)
    here: set[BlockId] = set()
    places = []
    for block in blocks:
        if block in seen:
            places.append(Place.EARLIER)
        elif block in here:
            places.append(Place.ABOVE)
        else:
            here.add(block)
            places.append(Place.HERE)
    return tuple(places)
