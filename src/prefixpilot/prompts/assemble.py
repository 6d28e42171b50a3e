"""From an order and the places of blocks to the blocks of a plan, with their labels and annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from functools import partial
from importlib import import_module
from itertools import count
from operator import eq
from typing import Any, Final, NamedTuple, cast

from prefixpilot.annotations import (
    Templates,
    block_name,
    block_names,
    location_annotation,
    order_annotation,
    written_label,
)
from prefixpilot.blocks import StoredBlock
from prefixpilot.config import Annotate, LabelSource
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, ContextBlock, Place, Plan, PlannedBlock

try:
    kernels: Any = import_module("prefixpilot.prompts._planned")
except ImportError:
    kernels = None

_PLAN_FIELDS: Final = tuple([field.name for field in fields(Plan)])


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
    names = block_names(record.next_number, len(order), templates)
    if labels == "counted" and places.count(Place.HERE) == len(places):
        return assemble_in_full(blocks, tuple(order), names)
    here: dict[BlockId, str] = {}
    taken = {*record.labels.values(), *_written_in_texts(blocks, templates)} if labels == "ids" else set[str]()
    counted = iter(names)
    planned = []
    for position, place in zip(order, places, strict=True):
        block_id, block, tokens, _ = blocks[position]
        annotation = None
        if place is Place.HERE:
            label = _name(block, next(counted), templates, labels, taken)
            taken.add(label)
            here.setdefault(block_id, label)
        else:
            label = (here if place is Place.ABOVE else record.labels)[block_id]
            annotation = location_annotation(label, earlier_turn=place is Place.EARLIER, templates=templates)
        planned.append(PlannedBlock(block_id, block, position, label, annotation, tokens))
    return tuple(planned)


def assemble_in_full(
    blocks: Sequence[StoredBlock], order: tuple[int, ...], labels: tuple[str, ...]
) -> tuple[PlannedBlock, ...]:
    """As :func:`assemble`, for most plans: every block in full, labels in prompt order. O(len)."""
    if kernels is not None:
        result: tuple[PlannedBlock, ...] = kernels.planned(PlannedBlock, blocks, order, labels)
        return result
    planned = []
    for place, position in enumerate(order):
        block_id, block, tokens, _ = blocks[position]
        planned.append(_planned_block((block_id, block, position, labels[place], None, tokens)))
    return tuple(planned)


_planned_block = partial(tuple.__new__, PlannedBlock)
"""``PlannedBlock._make`` without the Python frame."""


def texts_of(blocks: Sequence[StoredBlock]) -> list[str]:
    """The texts and titles of blocks, as far as they are not empty. O(len)."""
    if kernels is not None:
        result: list[str] = kernels.texts(blocks, "text", "title")
        return result
    return [text for _, block, _, _ in blocks for text in (block.text, block.title) if text]


def lengths_of(blocks: Sequence[StoredBlock]) -> dict[BlockId, int]:
    """The length of each distinct block, in order. O(len)."""
    if kernels is not None:
        result: dict[BlockId, int] = kernels.lengths(blocks)
        return result
    return {block_id: tokens for block_id, _, tokens, _ in blocks}


def new_plan(*values: Any) -> Plan:
    """``Plan(*values)``, all of its fields in order; a kernel sets them in a fifth of the time."""
    return Plan(*values) if kernels is None else cast(Plan, kernels.made(Plan, _PLAN_FIELDS, values))


class Columns(NamedTuple):
    """Distinct blocks that stand in full, in parallel.

    Attributes:
        ranks: their positions in the request.
    """

    ids: tuple[BlockId, ...] = ()
    tokens: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


_columns = partial(tuple.__new__, Columns)


def full_columns(blocks: tuple[PlannedBlock, ...]) -> Columns | None:
    """The columns of the blocks of a plan; ``None`` unless they are all distinct and in full. O(len)."""
    if not blocks:
        return Columns()
    if kernels is not None:
        found = kernels.columns(blocks)
        return None if found is None else _columns(found)
    ids, _, ranks, _, annotations, tokens = zip(*blocks, strict=True)
    if annotations.count(None) == len(set(ids)) == len(ids):
        return Columns(ids, tokens, ranks)
    return None


def relevance_annotation(
    order: Sequence[int],
    labels: Sequence[str],
    templates: Templates,
    most: Annotate = "all",
    *,
    distinct: bool = False,
) -> str | None:
    """The order annotation of blocks in prompt order, naming at most ``most`` of them. O(len).

    Args:
        order: their ranks, a permutation.
        labels: in parallel.
        distinct: they are known to be.

    ``None`` if the prompt begins with just those that it would name, in the retriever's order; so too if nothing but
    repeats was moved.
    """
    if distinct and kernels is not None and most != "all" and most < len(labels):
        named: list[str] | None = kernels.named(order, labels, most)
        return None if named is None else order_annotation(named, templates, rest=True)
    if most == 0 or all(map(eq, order, range(len(order)))):
        return None
    if most != "all" and len(labels) > most and (distinct or len(set(labels)) == len(labels)):
        names = [labels[order.index(rank)] for rank in range(most)]
        return None if names == list(labels[:most]) else order_annotation(names, templates, rest=True)
    label_at = dict(zip(order, labels, strict=True))
    names = list(dict.fromkeys(map(label_at.__getitem__, range(len(order)))))
    standing = list(dict.fromkeys(labels))
    bound = len(names) if most == "all" else most
    if names[:bound] == standing[:bound]:
        return None
    return order_annotation(names[:bound], templates, rest=bound < len(names))


def _name(block: ContextBlock, counted: str, templates: Templates, labels: LabelSource, taken: AbstractSet[str]) -> str:
    """By number; by id if asked for, where there is one and no other block of the prompt has its name."""
    if labels == "ids" and block.id is not None:
        name = block_name(block.id, templates)
        if name not in taken:
            return name
    return counted if counted not in taken else _name_beside(counted, taken)


def _written_in_texts(blocks: Sequence[StoredBlock], templates: Templates) -> Iterator[str]:
    """Names by id that stand, written as labels, in the text of a block. O(blocks * characters)."""
    texts = [text for _, block, *_ in blocks for text in (block.text, block.title) if text]
    for name in [block_name(block.id, templates) for _, block, *_ in blocks if block.id is not None] if texts else ():
        label = written_label(name, templates)
        if any(label in text for text in texts):
            yield name


def _name_beside(name: str, taken: AbstractSet[str]) -> str:
    return next(other for n in count(2) if (other := f"{name} ({n})") not in taken)
