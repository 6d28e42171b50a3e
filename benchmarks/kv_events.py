"""Page events a second that one process decodes, and decodes and applies to a page table. CPU time, best of several.

    python -m benchmarks.kv_events [--pages 200000] [--page-size 16 32] [--repeat 5]

Payloads are written beforehand: one prompt a batch, of 40 pages of which the first 20 are shared by ten prompts; once
2,000 prompts are held, the pages of the oldest go first, a page an event as vLLM writes them, in one event for SGLang.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import save

from prefixpilot.cache_events import CacheEvent, EventBatch, PageHash, PagesRemoved, PagesStored
from prefixpilot.engines.wire import decode
from prefixpilot.residency.pages import PageTable
from prefixpilot.testing.event_wire import EventShape, encode

PROMPT_PAGES = 40
SHARED = 20
GROUP = 10


def page(number: int) -> PageHash:
    """A name that is spread over all of its bits, as a hash is."""
    return PageHash(((number + 1) * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big"))


def prompt(number: int, size: int) -> tuple[tuple[PageHash, ...], tuple[int, ...], PageHash | None]:
    """New pages of a prompt, their tokens, and the page before them: the first prompt of a group stores all."""
    first = 0 if number % GROUP == 0 else SHARED
    base = number * PROMPT_PAGES
    names = tuple(page(base + i) for i in range(first, PROMPT_PAGES))
    tokens = tuple((base * size + i * 7919) % 128_000 for i in range(len(names) * size))
    parent = page(number // GROUP * GROUP * PROMPT_PAGES + SHARED - 1) if first else None
    return names, tokens, parent


def batches(pages: int, size: int, shape: EventShape, held: int = 2000) -> list[bytes]:
    """Payloads that store and remove ``pages`` pages in all; the cache holds ``held`` prompts."""
    written: list[bytes] = []
    total, number, kept = 0, 0, list[tuple[PageHash, ...]]()
    while total < pages:
        names, tokens, parent = prompt(number, size)
        gone = tuple(reversed(kept.pop(0))) if len(kept) >= held else ()
        kept.append(names)
        events: list[CacheEvent]
        if shape is EventShape.SGLANG:
            events = [PagesRemoved(gone)] if gone else []
        else:
            events = [PagesRemoved((name,)) for name in gone]
        events.append(PagesStored(names, parent, tokens, size))
        written.append(encode(events, shape, time=float(number), rank=0))
        total += len(names) + len(gone)
        number += 1
    return written


def count(payloads: Sequence[bytes]) -> int:
    return sum(len(event.pages) for p in payloads for event in decode(p).events if isinstance(event, _PAGES))


_PAGES = (PagesStored, PagesRemoved)


def best_rate(run: Callable[[], None], pages: int, repeat: int) -> int:
    """Pages per CPU second of the fastest run."""
    seconds = []
    for _ in range(repeat):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return round(pages / min(seconds))


def measure(payloads: Sequence[bytes], repeat: int) -> dict[str, int]:
    def decode_all() -> None:
        for payload in payloads:
            decode(payload)

    def decode_and_apply() -> None:
        table = PageTable()
        for number, payload in enumerate(payloads):
            table.apply(EventBatch("bench", 0, number, decode(payload).events))

    pages = count(payloads)
    return {
        "pages": pages,
        "bytes_a_page": round(sum(map(len, payloads)) / pages),
        "decoded_pages_per_cpu_s": best_rate(decode_all, pages, repeat),
        "decoded_and_applied_pages_per_cpu_s": best_rate(decode_and_apply, pages, repeat),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=200_000)
    parser.add_argument("--page-size", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for size in args.page_size:
        for shape in (EventShape.VLLM, EventShape.ARRAYS, EventShape.SGLANG):
            result[f"{shape.value}, pages of {size}"] = measure(batches(args.pages, size, shape), args.repeat)
    save("kv_events", result)


if __name__ == "__main__":
    main()
