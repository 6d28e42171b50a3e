"""Decodes the KV events of vLLM and SGLang: one MessagePack payload into :mod:`prefixpilot.cache_events`. Pure.

What engines write, by release:

* A batch is an array ``[time, events, data-parallel rank]`` (vLLM, SGLang); a map with these names is read too.
* An event is a map whose ``type`` is its name (vLLM 0.32, SGLang 0.5.23), or an array that begins with its name
  (earlier releases of both). Fields that are ``None`` may be left out; in an array, only at its end.
* A page's name is an unsigned integer (vLLM), a signed one (SGLang), or bytes (vLLM, if it is told so).
* The tokens of a group of sliding-window layers may include those of pages that are left out (vLLM): where tokens do
  not fill the pages, it is taken as not told which page holds which.
* A cache salt stands in the extra keys of a prompt's first page (vLLM), or is a field of the event (SGLang). Both are
  read as the former. The adapter's name, which vLLM repeats in the extra keys of every page, is left out of them.

The format is a stranger's: whatever comes, the result is events or an :class:`~prefixpilot.errors.EventError`. Work and
memory are linear in the payload's size; depth is bounded by the decoder.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Final, NamedTuple

from prefixpilot.cache_events import GPU, CacheCleared, CacheEvent, PageHash, PagesRemoved, PagesStored
from prefixpilot.errors import EventError, MissingExtraError

try:
    import msgspec
    from msgspec import Meta, Raw, Struct
    from msgspec.msgpack import Decoder
except ImportError:
    raise MissingExtraError("msgspec", 'pip install "prefixpilot[proxy,kv-events]"') from None

_MASK: Final = (1 << 64) - 1
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""First bytes of MessagePack arrays."""

Name = int | bytes
Token = Annotated[int, Meta(ge=0, lt=1 << 62)]
Count = Annotated[int, Meta(ge=1, le=1 << 30)]


class DecodedBatch(NamedTuple):
    """One payload, decoded.

    Attributes:
        events: in the order in which they happened.
        rank: the data-parallel rank that sent it; ``None`` if it does not say.
        unknown: how many events were of a kind that is not known here; they are left out.
    """

    events: tuple[CacheEvent, ...]
    rank: int | None
    unknown: int


class _Batch(Struct, gc=False):
    events: list[Raw]
    data_parallel_rank: Annotated[int, Meta(ge=0)] | None = None
    attn_dp_rank: Annotated[int, Meta(ge=0)] | None = None


class _BatchArray(Struct, array_like=True, gc=False):
    time: Raw
    events: list[Raw]
    rank: Annotated[int, Meta(ge=0)] | None = None


class _Stored(Struct, tag_field="type", tag="BlockStored", gc=False):
    """Field names of both engines, in vLLM's order, which is that of the array form."""

    block_hashes: tuple[Name, ...]
    parent_block_hash: Name | None
    token_ids: tuple[Token, ...]
    block_size: Count
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None


class _StoredArray(_Stored, array_like=True, gc=False):
    pass


class _StoredPairs(_Stored, gc=False):
    """SGLang writes pairs of neighbouring tokens where it speculates with bigrams: it is not told what a page holds."""

    token_ids: tuple[tuple[Token, Token], ...]  # type: ignore[assignment]


class _Removed(Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: tuple[Name, ...]
    medium: str | None = None
    group_idx: int | None = None


class _RemovedArray(_Removed, array_like=True, gc=False):
    pass


class _Cleared(Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


class _ClearedArray(_Cleared, array_like=True, gc=False):
    pass


_KNOWN: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_BATCH: Final = Decoder(_Batch)
_BATCH_ARRAY: Final = Decoder(_BatchArray)
_EVENT: Final = Decoder(_Stored | _Removed | _Cleared)
_EVENT_ARRAY: Final = Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_PAIRS: Final = Decoder(_StoredPairs)
_ANYTHING: Final = Decoder()


def decode(payload: bytes) -> DecodedBatch:
    """The batch that ``payload`` holds. O(length).

    Raises:
        EventError: it is no batch of events, or one of its events contradicts itself. It says which and what.
    """
    try:
        raw, rank = _batch(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EventError("payload", _reason(error), "send batches as vLLM or SGLang do") from None
    events: list[CacheEvent] = []
    unknown = 0
    for number, each in enumerate(raw):
        try:
            event = _event(each)
        except (msgspec.MsgspecError, RecursionError, _ContradictionError) as error:
            raise EventError(f"payload.events[{number}]", _reason(error), "send events as vLLM or SGLang do") from None
        if event is None:
            unknown += 1
        elif not isinstance(event, PagesStored | PagesRemoved) or event.pages:
            events.append(event)
    return DecodedBatch(tuple(events), rank, unknown)


class _ContradictionError(ValueError):
    """An event whose fields do not fit each other."""


def _reason(error: Exception) -> str:
    return "is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _batch(payload: bytes) -> tuple[list[Raw], int | None]:
    if payload[:1] and payload[0] in _ARRAYS:
        array = _BATCH_ARRAY.decode(payload)
        return array.events, array.rank
    batch = _BATCH.decode(payload)
    return batch.events, batch.attn_dp_rank if batch.data_parallel_rank is None else batch.data_parallel_rank


def _event(raw: Raw) -> CacheEvent | None:
    """The event; ``None`` if its kind is not known."""
    is_array = memoryview(raw)[0] in _ARRAYS
    try:
        return _usual(raw, is_array)
    except msgspec.ValidationError:
        return _unusual(raw, is_array)


def _usual(raw: Raw, is_array: bool) -> CacheEvent:
    event = (_EVENT_ARRAY if is_array else _EVENT).decode(raw)
    if isinstance(event, _Stored):
        return _stored(event, event.token_ids)
    return _removed(event) if isinstance(event, _Removed) else CacheCleared()


def _unusual(raw: Raw, is_array: bool) -> CacheEvent | None:
    """An event that the ordinary decoders refuse: pairs of tokens, an unknown kind (``None``), or a wrong one."""
    anything: Any = _ANYTHING.decode(raw)
    kind = (anything[0] if anything else None) if is_array else _type_of(anything)
    if isinstance(kind, str) and kind not in _KNOWN:
        return None
    if kind == "BlockStored" and not is_array and _begins_with_pair(anything.get("token_ids")):
        return _stored(_PAIRS.decode(raw), ())
    return _usual(raw, is_array)  # raises again, and says what is wrong


def _type_of(event: Any) -> Any:
    return event.get("type") if isinstance(event, dict) else None


def _begins_with_pair(tokens: Any) -> bool:
    return isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], list)


def _stored(event: _Stored, tokens: tuple[int, ...]) -> PagesStored:
    names, parent = event.block_hashes, event.parent_block_hash
    if len(tokens) != len(names) * event.block_size:
        tokens = ()
    return PagesStored(
        pages=tuple([_name(each) for each in names]),
        parent=None if parent is None else _name(parent),
        token_ids=tokens,
        page_size=event.block_size,
        medium=event.medium or GPU,
        adapter=_adapter(event),
        extra_keys=_extra_keys(event),
        group=event.group_idx or 0,
    )


def _removed(event: _Removed) -> PagesRemoved:
    return PagesRemoved(tuple([_name(each) for each in event.block_hashes]), event.medium or GPU, event.group_idx or 0)


def _name(name: Name) -> PageHash:
    return PageHash(name if isinstance(name, bytes) else (name & _MASK).to_bytes(8, "big"))


def _adapter(event: _Stored) -> str | None:
    if event.lora_name is not None:
        return event.lora_name
    return None if event.lora_id is None else str(event.lora_id)


def _extra_keys(event: _Stored) -> tuple[Hashable, ...]:
    """For each page ``None`` or a tuple; empty if no page has any."""
    if event.extra_keys is not None:
        return _vllm_keys(event.extra_keys, event.lora_name, len(event.block_hashes))
    if event.cache_salt is None or event.parent_block_hash is not None:
        return ()
    return ((event.cache_salt,), *(None for _ in event.block_hashes[1:]))


def _vllm_keys(keys: Sequence[Any], adapter: str | None, count: int) -> tuple[Hashable, ...]:
    if len(keys) != count:
        raise _ContradictionError(f"has {len(keys)} extra keys for {count} pages")
    cleaned = tuple([None if each is None else _without_adapter(_frozen(each), adapter) for each in keys])
    return cleaned if any(each is not None for each in cleaned) else ()


def _without_adapter(key: Hashable, adapter: str | None) -> Hashable:
    if adapter is None or not isinstance(key, tuple) or key[:1] != (adapter,):
        return key
    return key[1:] or None


def _frozen(value: Any) -> Hashable:
    """A value of the wire that can be hashed and compared: lists become tuples, maps sorted pairs of texts."""
    if isinstance(value, list | tuple):
        return tuple([_frozen(each) for each in value])
    if isinstance(value, dict):
        return tuple(sorted((repr(key), repr(item)) for key, item in value.items()))
    if isinstance(value, msgspec.msgpack.Ext):
        return (value.code, bytes(value.data))
    return value if isinstance(value, Hashable) else repr(value)
