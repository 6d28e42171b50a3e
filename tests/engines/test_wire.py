"""The decoder of KV events: both shapes at both levels, odd values, captured bytes, and payloads of ill will."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.cache_events import CacheCleared, CacheEvent, PageHash, PagesRemoved, PagesStored
from prefixpilot.engines.wire import DecodedBatch, decode
from prefixpilot.errors import EventError, InvalidInputError
from prefixpilot.testing.event_wire import EventShape, encode
from prefixpilot.testing.page_pool import PagePool

WIRE = Path(__file__).parents[1] / "wire"
VLLM = WIRE / "vllm-0.32.0"
SGLANG = WIRE / "sglang-0.5.23"


def packed(*events: Any, rank: int | None = 0) -> bytes:
    batch = [1.5, list(events)]
    return msgspec.msgpack.encode(batch if rank is None else [*batch, rank])


def stored(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [10, 11, 12, 13],
        "block_size": 2,
        **fields,
    }


def name(value: int) -> PageHash:
    return PageHash((value % (1 << 64)).to_bytes(8, "big"))


def one(payload: bytes) -> CacheEvent:
    (event,) = decode(payload).events
    return event


PLAIN = PagesStored((name(1), name(2)), None, (10, 11, 12, 13), 2)


def test_a_batch_is_an_array_or_a_map() -> None:
    expected = DecodedBatch((PLAIN,), 3, 0)
    assert decode(packed(stored(), rank=3)) == expected
    assert decode(msgspec.msgpack.encode({"ts": 1, "events": [stored()], "data_parallel_rank": 3})) == expected
    assert decode(msgspec.msgpack.encode({"ts": 1, "events": [stored()], "attn_dp_rank": 3})) == expected


def test_a_rank_may_be_none_or_missing() -> None:
    assert decode(packed(stored(), rank=None)).rank is None
    assert decode(msgspec.msgpack.encode([1.5, [stored()], None])).rank is None
    assert decode(msgspec.msgpack.encode({"events": []})) == DecodedBatch((), None, 0)


def test_an_event_is_a_map_or_an_array_and_ends_early() -> None:
    array = ["BlockStored", [1, 2], None, [10, 11, 12, 13], 2]
    assert one(packed(array)) == PLAIN
    assert one(packed([*array, 5, "CPU"])) == PLAIN._replace(adapter="5", medium="CPU")
    assert one(packed([*array, 5, "GPU", "name", [["name", "s"], ["name"]], 1])) == PLAIN._replace(
        adapter="name", extra_keys=(("s",), None), group=1
    )
    assert one(packed(["BlockRemoved", [1]])) == PagesRemoved((name(1),))
    assert one(packed(["BlockRemoved", [1], "CPU", 2])) == PagesRemoved((name(1),), "CPU", 2)
    assert one(packed(["AllBlocksCleared"])) == CacheCleared()


def test_unknown_fields_are_passed_over() -> None:
    assert one(packed(stored(kv_cache_spec_kind="full_attention", of_the_future={"a": [1]}))) == PLAIN
    assert one(packed(["AllBlocksCleared", 1, 2, 3])) == CacheCleared()
    assert decode(msgspec.msgpack.encode([1.5, [stored()], 0, "more", {}])).events == (PLAIN,)


def test_unknown_kinds_are_counted_and_left_out() -> None:
    batch = decode(packed({"type": "BlockMoved", "to": 3}, stored(), ["BlockPinned", 4]))
    assert batch == DecodedBatch((PLAIN,), 0, 2)


def test_integer_names_are_one_name_whichever_way_they_are_written() -> None:
    signed = one(packed(stored(block_hashes=[-1, 5], parent_block_hash=-(1 << 63))))
    unsigned = one(packed(stored(block_hashes=[(1 << 64) - 1, 5], parent_block_hash=1 << 63)))
    assert signed == unsigned
    assert isinstance(signed, PagesStored)
    assert signed.pages == (PageHash(b"\xff" * 8), name(5))


def test_names_may_be_bytes() -> None:
    event = one(packed(stored(block_hashes=[b"a" * 32, b"b" * 32], parent_block_hash=b"c" * 32)))
    assert isinstance(event, PagesStored)
    assert (event.pages, event.parent) == ((b"a" * 32, b"b" * 32), b"c" * 32)


def test_a_salt_is_an_extra_key_of_the_first_page_in_both_engines() -> None:
    vllm = one(packed(stored(extra_keys=[["tenant"], None])))
    sglang = one(packed(stored(cache_salt="tenant")))
    assert vllm == sglang == PLAIN._replace(extra_keys=(("tenant",), None))
    below = one(packed(stored(cache_salt="tenant", parent_block_hash=9)))
    assert below == PLAIN._replace(parent=name(9))


def test_an_adapter_is_not_told_twice() -> None:
    event = one(packed(stored(lora_id=4, lora_name="poet", extra_keys=[["poet", "salt"], ["poet"]])))
    assert event == PLAIN._replace(adapter="poet", extra_keys=(("salt",), None))


def test_extra_keys_can_be_compared_whatever_they_are() -> None:
    keys = [[["image-7", 3], {"b": 1, "a": [2]}], [msgspec.msgpack.Ext(5, b"x")]]
    event = one(packed(stored(extra_keys=keys)))
    assert isinstance(event, PagesStored)
    assert event.extra_keys == ((("image-7", 3), (("'a'", "[2]"), ("'b'", "1"))), ((5, b"x"),))
    assert hash(event.extra_keys)
    assert one(packed(stored(extra_keys=[None, None]))) == PLAIN


def test_tokens_that_do_not_fill_the_pages_are_taken_as_not_told() -> None:
    assert one(packed(stored(token_ids=[1, 2, 3]))) == PLAIN._replace(token_ids=())
    assert one(packed(stored(token_ids=[]))) == PLAIN._replace(token_ids=())


def test_an_event_without_pages_says_nothing() -> None:
    assert decode(packed(stored(block_hashes=[]), {"type": "BlockRemoved", "block_hashes": []})).events == ()


def test_pairs_of_tokens_are_not_tokens() -> None:
    assert one(packed(stored(token_ids=[[10, 11], [11, 12], [12, 13], [13, 14]]))) == PLAIN._replace(token_ids=())


WRONG: dict[str, bytes] = {
    "nothing": b"",
    "a number": msgspec.msgpack.encode(7),
    "no events": msgspec.msgpack.encode([1.5]),
    "events that are none": msgspec.msgpack.encode([1.5, 7]),
    "a negative rank": packed(rank=-1),
    "an event that is a number": packed(7),
    "an event that is empty": packed([]),
    "an event that is nil": packed(None),
    "an event without a kind": packed({"block_hashes": [1]}),
    "a kind that is a number": packed({"type": 1}),
    "no names": packed({"type": "BlockRemoved"}),
    "a name that is a text": packed({"type": "BlockRemoved", "block_hashes": ["x"]}),
    "a name that is true": packed({"type": "BlockRemoved", "block_hashes": [True]}),
    "pages of no tokens": packed(stored(block_size=0)),
    "a token below zero": packed(stored(token_ids=[1, 2, 3, -1])),
    "a token that is a text": packed(stored(token_ids=[1, 2, 3, "x"])),
    "pairs and no pairs": packed(stored(token_ids=[[1, 2], 3])),
    "a medium that is a number": packed(stored(medium=3)),
    "an extra key too many": packed(stored(extra_keys=[None] * 3)),
    "an array of the kind alone": packed(["BlockStored"]),
    "an unknown extension": packed(msgspec.msgpack.Ext(3, b"x")),
    "more behind it": packed() + b"\x00",
    "not UTF-8": b"\x92\x00\x91\x81\xa4type\xa2\xff\xfe",
    "a list longer than the payload": b"\x92\x00\xdd\xff\xff\xff\xff",
    "a text longer than the payload": b"\x92\x00\xdb\xff\xff\xff\xff",
    "a page list longer than the payload": b"\x92\x00\x91\x93\xabBlockStored\xdd\xff\xff\xff\xff",
    "depth": b"\x92\x00" + b"\x91" * 100_000 + b"\x00",
    "depth of maps": b"\x92\x00\x91" + b"\x81\xa1a" * 100_000 + b"\x00",
    "a byte that is never used": b"\xc1",
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_one_error_that_says_what(payload: bytes) -> None:
    with pytest.raises(EventError) as caught:
        decode(payload)
    assert caught.value.field.startswith("payload")
    assert caught.value.reason
    assert isinstance(caught.value, InvalidInputError)


@pytest.mark.parametrize("levels", [50, 900, 990, 2_000])
def test_a_deep_extra_key_is_read_or_refused(levels: int) -> None:
    parts = [each for pair in stored().items() for each in pair]
    deep = b"\x91" * levels + msgspec.msgpack.encode("bottom")
    event = b"\x86" + b"".join(map(msgspec.msgpack.encode, [*parts, "extra_keys"])) + b"\x92" + deep + b"\xc0"
    payload = b"\x92\x00\x91" + event
    try:
        found = one(payload)
    except EventError as error:
        assert levels > 50
        assert "deep" in error.reason
    else:
        assert isinstance(found, PagesStored)
        assert found.extra_keys[0] is not None


def test_the_error_names_the_event() -> None:
    with pytest.raises(EventError, match=r"payload\.events\[1\].*block_size"):
        decode(packed(stored(), stored(block_size=-3)))


tokens = st.integers(0, (1 << 31) - 1)
hashes = st.binary(min_size=8, max_size=8).map(PageHash)


@st.composite
def stored_events(draw: st.DrawFn) -> PagesStored:
    count, size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    pages = tuple(draw(hashes) for _ in range(count))
    parent = draw(st.none() | hashes)
    salt = draw(st.none() | st.text(max_size=5)) if parent is None else None
    extra = () if salt is None else ((salt,), *(None,) * (count - 1))
    ids = tuple(draw(tokens) for _ in range(count * size))
    medium, adapter = draw(st.sampled_from(["GPU", "CPU"])), draw(st.none() | st.text(min_size=1, max_size=5))
    return PagesStored(pages, parent, ids, size, medium, adapter, extra)


removed_events = st.lists(hashes, min_size=1, max_size=4).map(lambda pages: PagesRemoved(tuple(pages)))
events = st.lists(stored_events() | removed_events | st.just(CacheCleared()), max_size=5)
shapes = st.sampled_from(EventShape)


@given(events, shapes, st.none() | st.integers(0, 9))
def test_what_is_written_is_read(written: list[CacheEvent], shape: EventShape, rank: int | None) -> None:
    assert decode(encode(written, shape, time=1.5, rank=rank)) == DecodedBatch(tuple(written), rank, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_the_one_error(payload: bytes) -> None:
    read_or_refuse(payload)


scalars = st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4)
anything = st.recursive(
    st.none() | scalars | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
fields = st.sampled_from(list(stored(medium="GPU", extra_keys=None, lora_name=None, cache_salt=None, lora_id=None)))


@given(kinds, st.dictionaries(fields, anything, max_size=6))
def test_any_values_in_the_known_fields_are_events_or_the_one_error(kind: str, values: dict[str, Any]) -> None:
    read_or_refuse(packed({**stored(), **values, "type": kind}))
    read_or_refuse(packed([kind, *values.values()]))


@given(events, shapes, st.randoms(use_true_random=False))
def test_damaged_payloads_are_events_or_the_one_error(
    written: list[CacheEvent], shape: EventShape, chance: random.Random
) -> None:
    payload = bytearray(encode(written, shape, time=1.5, rank=0))
    for _ in range(chance.randint(1, 3)):
        payload[chance.randrange(len(payload))] = chance.randrange(256)
    read_or_refuse(bytes(payload))
    read_or_refuse(bytes(payload[: chance.randrange(len(payload))]))


def read_or_refuse(payload: bytes) -> None:
    """What comes back can be compared, hashed and trusted in its lengths."""
    try:
        batch = decode(payload)
    except EventError:
        return
    hash(batch.events)
    for event in batch.events:
        if isinstance(event, PagesStored):
            assert event.pages
            assert len(event.token_ids) in (0, len(event.pages) * event.page_size)
            assert len(event.extra_keys) in (0, len(event.pages))


def captured(folder: Path) -> list[DecodedBatch]:
    return [decode(path.read_bytes()) for path in sorted(folder.glob("*.msgpack"))]


def test_what_vllm_wrote_is_what_its_pages_did() -> None:
    """The pool of the simulated engine, given the same prompts, tells the same: kind by kind and page by page."""
    batches = captured(VLLM)
    answers = json.loads((VLLM / "answers.json").read_text())
    pool, told = PagePool(33, 32), list[CacheEvent]()
    names: dict[PageHash, PageHash] = {}
    for run in vllm_runs(batches, answers):
        if run is None:
            assert pool.reset()
            continue
        prompt, salt, answer, cached = run
        allocation = pool.begin(prompt, salt)
        assert allocation is not None
        assert allocation.cached_tokens == cached
        pool.extend(allocation, answer)
        pool.end(allocation)
        told.extend(pool.take_events())
    for ours, theirs in zip(told, [event for batch in batches for event in batch.events], strict=True):
        if isinstance(theirs, PagesStored):
            assert isinstance(ours, PagesStored)
            names.update(zip(theirs.pages, ours.pages, strict=True))
        assert ours == renamed(theirs, names)


def renamed(event: CacheEvent, names: dict[PageHash, PageHash]) -> CacheEvent:
    """An event of vLLM's with our names for its pages."""
    if isinstance(event, PagesStored):
        parent = None if event.parent is None else names[event.parent]
        return event._replace(pages=tuple(names[page] for page in event.pages), parent=parent)
    return (
        event._replace(pages=tuple(names[page] for page in event.pages)) if isinstance(event, PagesRemoved) else event
    )


Run = tuple[list[int], str | None, list[int], int]


def vllm_runs(batches: list[DecodedBatch], answers: Any) -> list[Run | None]:
    """Prompt, salt, answer and reported hit of each request; ``None`` for the reset. Of a last page that was not full
    no one knows the tokens; any that occur nowhere else do."""
    stores = [event for batch in batches for event in batch.events if isinstance(event, PagesStored)]

    def run(key: str, tokens: list[int], salt: str | None = None, answer: list[int] | None = None) -> Run:
        usage = answers[key]["usage"]
        tail = [(1 << 20) + i for i in range(usage["prompt_tokens"] - len(tokens))]
        return [*tokens, *tail], salt, answer or [], usage["prompt_tokens_details"]["cached_tokens"]

    chat = answers["tokenize_chat"]["tokens"]
    computed = list(stores[1].token_ids)[len(chat) - 96 :]
    computed += [1 << 21] * (answers["chat"]["usage"]["completion_tokens"] - 1 - len(computed))
    fills = [run(f"fill_{i}", list(stores[3 + i].token_ids)) for i in range(4)]
    return [
        run("chat", chat, None, computed),
        run("again", chat),
        run("salted", list(stores[2].token_ids), "tenant-a"),
        *fills,
        run("evicted", list(stores[7].token_ids), "tenant-a"),
        None,
        run("after_reset", list(stores[8].token_ids)),
    ]


def test_what_vllm_calls_its_tokens_is_what_it_stores() -> None:
    first = captured(VLLM)[0].events[0]
    assert isinstance(first, PagesStored)
    answers = json.loads((VLLM / "answers.json").read_text())
    assert list(first.token_ids) == answers["tokenize_chat"]["tokens"][:96]
    assert answers["tokenize_chat"]["count"] == answers["chat"]["usage"]["prompt_tokens"]


def test_what_sglang_writes() -> None:
    cleared, plain, named, host, pairs = captured(SGLANG)
    a, b, c, d, e = (name(v) for v in (-8526094273189911321, 4719503341187226015, -1, 77, -(1 << 63)))
    assert cleared == DecodedBatch((CacheCleared(),), None, 0)
    assert plain == DecodedBatch((PagesStored((a, b, c), None, tuple(range(500, 512)), 4),), 1, 0)
    assert named.events == (
        PagesStored((d,), c, (9, 8, 7, 6), 4, adapter="adapter-a"),
        PagesStored((e,), None, (1, 2, 3, 4), 4, extra_keys=(("tenant-a",),)),
    )
    assert host.events == (
        PagesStored((a, b), None, tuple(range(500, 508)), 4, medium="CPU_PINNED"),
        PagesRemoved((a, b, c)),
    )
    assert pairs.events == (PagesStored((a,), None, (), 4),)
