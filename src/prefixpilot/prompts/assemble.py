"""From an order and the places of blocks to the blocks of a plan, with their labels and annotations."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from operator import attrgetter

from prefixpilot.annotations import Templates, location_annotation, order_annotation
from prefixpilot.blocks import StoredBlock
from prefixpilot.config import Annotate, LabelSource
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, Place, PlannedBlock


def assemble(
    blocks: Sequence[StoredBlock],
    order: Sequence[int],
    places: Sequence[Place],
    record: ConversationRecord,
    templates: Templates,
    labels: LabelSource,
) -> tuple[PlannedBlock, ...]:
    """The blocks of a plan, in prompt order. O(len).

    Args:
        blocks: by position in the request.
        order: positions in prompt order.
        places: in prompt order, parallel to ``order``; an ``EARLIER`` one is in ``record.labels``, an ``ABOVE`` one has
            a ``HERE`` before it.
        record: of the turns that stand before this one; its labels go on being valid, its numbers are counted on.
    """
    here: dict[BlockId, str] = {}
    taken = set(record.labels.values()) if labels == "ids" else set[str]()
    number = record.next_number
    planned = []
    for position, place in zip(order, places, strict=True):
        stored = blocks[position]
        if place is Place.HERE:
            label = _name(stored, number, templates, labels, taken)
            taken.add(label)
            here.setdefault(stored.block_id, label)
            number += 1
        else:
            label = (here if place is Place.ABOVE else record.labels)[stored.block_id]
        annotation = _location(label, place, templates)
        planned.append(PlannedBlock(stored.block_id, stored.block, position, label, annotation, stored.tokens))
    return tuple(planned)


def relevance_annotation(planned: Sequence[PlannedBlock], templates: Templates, most: Annotate = "all") -> str | None:
    """The order annotation of blocks in prompt order, naming at most ``most`` of them.

    ``None`` if they stand in the retriever's order; with a bound also if the prompt begins with just those that it
    would name.
    """
    ranks = [block.position for block in planned]
    if most == 0 or ranks == sorted(ranks):
        return None
    names = list(dict.fromkeys(block.label for block in sorted(planned, key=attrgetter("position"))))
    if most == "all" or len(names) <= most:
        return order_annotation(names, templates)
    standing = list(dict.fromkeys(block.label for block in planned))
    if names[:most] == standing[:most]:
        return None
    return order_annotation(names[:most], templates, rest=True)


def _name(stored: StoredBlock, number: int, templates: Templates, labels: LabelSource, taken: AbstractSet[str]) -> str:
    """By number; by id if asked for, where there is one and no other block of the prompt has its name."""
    if labels == "ids" and stored.block.id is not None:
        name = templates.name.format(number=stored.block.id)
        if name not in taken:
            return name
    name = templates.name.format(number=number)
    return name if name not in taken else _name_beside(name, taken)


def _name_beside(name: str, taken: AbstractSet[str]) -> str:
    return next(other for n in count(2) if (other := f"{name} ({n})") not in taken)


def _location(label: str, place: Place, templates: Templates) -> str | None:
    if place is Place.HERE:
        return None
    return location_annotation(label, earlier_turn=place is Place.EARLIER, templates=templates)
