"""Writes KV events as engines do, for tests without one: the counterpart of :mod:`prefixpilot.engines.wire`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from prefixpilot.cache_events import CacheEvent, PageHash, PagesRemoved, PagesStored


class EventShape(Enum):
    """Who writes.

    VLLM: events are maps (0.32). ARRAYS: events are arrays, as in releases before it. SGLANG: maps, names are signed,
    the salt is a field (0.5.23). VLLM_BYTES: as VLLM, with names as bytes.
    """

    VLLM = "vllm"
    VLLM_BYTES = "vllm-bytes"
    ARRAYS = "arrays"
    SGLANG = "sglang"


def encode(events: Sequence[CacheEvent], shape: EventShape, *, time: float, rank: int | None) -> bytes:
    """One batch as a payload. Requests that were evicted are not part of it: no engine writes them."""
    written = [_event(event, shape) for event in events]
    batch: list[Any] = [time, [w if shape is not EventShape.ARRAYS else _as_array(w) for w in written]]
    return msgspec.msgpack.encode(batch if rank is None else [*batch, rank])


def _event(event: CacheEvent, shape: EventShape) -> Mapping[str, Any]:
    if isinstance(event, PagesStored):
        return {"type": "BlockStored", **_stored(event, shape)}
    if isinstance(event, PagesRemoved):
        names = _names(event.pages, shape)
        removed = {"type": "BlockRemoved", "block_hashes": names, "medium": event.medium}
        return removed if shape is EventShape.SGLANG else {**removed, "group_idx": event.group}
    return {"type": "AllBlocksCleared"}


def _stored(event: PagesStored, shape: EventShape) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "block_hashes": _names(event.pages, shape),
        "parent_block_hash": None if event.parent is None else _names([event.parent], shape)[0],
        "token_ids": event.token_ids,
        "block_size": event.page_size,
        "lora_id": None,
        "medium": event.medium,
    }
    first = event.extra_keys[0] if event.extra_keys else None
    if shape is EventShape.SGLANG:
        salt = first[0] if isinstance(first, tuple) and first else None
        adapter = {} if event.adapter is None else {"lora_name": event.adapter}
        return {**fields, **adapter} if salt is None else {**fields, **adapter, "cache_salt": salt}
    keys = event.extra_keys or (None,) * len(event.pages)
    if event.adapter is not None:
        keys = tuple((event.adapter, *(key if isinstance(key, tuple) else ())) for key in keys)
    return {**fields, "lora_name": event.adapter, "extra_keys": keys, "group_idx": event.group}


def _names(names: Iterable[PageHash], shape: EventShape) -> list[int | bytes]:
    if shape is EventShape.VLLM_BYTES:
        return list(names)
    return [int.from_bytes(name, "big", signed=shape is EventShape.SGLANG) for name in names]


def _as_array(event: Mapping[str, Any]) -> list[Any]:
    """Values in the order of their fields; those at the end that are ``None`` are left out."""
    values = list(event.values())
    while values[-1] is None:
        values.pop()
    return values
