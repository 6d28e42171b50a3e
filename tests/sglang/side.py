"""SGLang's RadixCache in a process of its own. Run by :mod:`tests.sglang.process` with a Python that has torch.

    python side.py DIRECTORY < jobs > answers

DIRECTORY holds SGLang (`pip install --no-deps --target DIRECTORY sglang==0.5.23`). Jobs and answers are JSON, a line
each; what there is to do is in `Cache`, whose methods are the jobs. A prompt is a list of [first, count]: that many
token ids, one after the other, from the first on.

The cache's own modules run as they are. What they import besides, and a cache without memory pools never calls, is
replaced by the empty modules named in STAND_INS, so that neither a GPU nor its libraries are wanted.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from array import array
from collections.abc import Sequence
from typing import Any

STAND_INS = (
    "IPython",
    "orjson",
    "sgl_kernel",
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.layers",
    "sglang.srt.mem_cache.memory_pool",
    "torchao",
    "torchvision",
    "transformers",
)
"""Kernels, model configurations, memory pools, libraries of models and of the server."""
WHERE_MISSING = "zmq"
"""Wanted to publish, not to count."""
NOT_RUN = "sglang"
"""A package whose modules are found, but whose `__init__` imports the server, and is not run."""
Prompt = Sequence[tuple[int, int]]


class _AnyClass(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def _attribute(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyClass(name, (), {"__init__": lambda self, *_, **__: None})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives an empty module for each of the names, and for those below."""

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        self.directory = directory
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        stands_in = any(name == one or name.startswith(f"{one}.") for one in self.names)
        if not stands_in and name != NOT_RUN:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name == NOT_RUN:
            spec.submodule_search_locations = [f"{self.directory}/{NOT_RUN}"]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        if spec.name != NOT_RUN:
            module.__getattr__ = _attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


class Allocator:
    """What the cache asks of a memory pool: where it is, and to take back what was evicted."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        """Nothing was allocated."""


class Cache:
    """The jobs, on one cache. The first must be ``open``."""

    def open(self, page: int, capacity: int | None, events: dict[str, Any] | None = None) -> None:
        """A new, empty cache.

        Args:
            page: tokens in a page.
            capacity: in tokens; ``None`` for no bound.
            events: as in SGLang's ``--kv-events-config``; what the cache records is published so.
        """
        import torch

        from sglang.srt.mem_cache.radix_cache import RadixCache

        self.capacity, self.page = capacity, page
        self.publisher: Any = None
        allocator = Allocator(torch.device("cpu"))
        recorded = events is not None
        self.cache = RadixCache.create_simulated(
            mock_allocator=allocator, page_size=page, enable_kv_cache_events=recorded
        )
        if events is not None:
            from sglang.srt.disaggregation.kv_events import EventPublisherFactory

            self.publisher = EventPublisherFactory.create(json.dumps(events))

    def take(self, prompts: Sequence[Prompt], salt: str | None = None) -> list[int]:
        """Tokens of each prompt that the cache served, as its scheduler uses it.

        A prompt is matched, what it matched is locked, room is made for the rest, and it is inserted. Of a prompt
        larger than the cache only as much as the cache holds is inserted.
        """
        return [self._take(self._key(prompt, salt)) for prompt in prompts]

    def publish(self) -> int:
        """Publish what was recorded since the last time, as its scheduler does at each step; how many events."""
        import time

        from sglang.srt.disaggregation.kv_events import KVEventBatch

        events = self.cache.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        return len(events)

    def held(self, prompts: Sequence[Prompt], salt: str | None = None) -> list[int]:
        """Tokens of the longest prefix of each that the cache holds now."""
        return [self._match(self._key(prompt, salt)).device_prefix_len for prompt in prompts]

    def pages(self) -> int:
        """How many it holds in all."""
        return int(self.cache.total_size()) // self.page

    def reset(self) -> None:
        """Empty it, as ``/flush_cache`` does."""
        self.cache.reset()

    def close(self) -> None:
        """End the publisher."""
        if self.publisher is not None:
            self.publisher.shutdown()

    def _key(self, prompt: Prompt, salt: str | None) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        ids = array("q")
        for first, count in prompt:
            ids.extend(range(first, first + count))
        return RadixKey(ids, cache_salt=salt)

    def _match(self, key: Any) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(MatchPrefixParams(key=key))

    def _take(self, key: Any) -> int:
        import torch

        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams

        found = self._match(key)
        capacity = len(key) if self.capacity is None else self.capacity
        kept = key[:capacity].page_aligned(self.page)
        wanted = self.cache.total_size() + len(kept) - min(found.device_prefix_len, len(kept))
        if self.capacity is not None and wanted > capacity:
            self.cache.inc_lock_ref(found.last_device_node)
            self.cache.evict(EvictParams(num_tokens=wanted - capacity))
            self.cache.dec_lock_ref(found.last_device_node)
        self.cache.insert(InsertParams(key=kept, value=torch.arange(len(kept))))
        if self.capacity is not None and self.cache.total_size() > capacity:
            raise RuntimeError(f"the cache holds {self.cache.total_size()} tokens, of {capacity}")
        return int(found.device_prefix_len)


def main() -> None:
    directory = sys.argv[1]
    names = [*STAND_INS, *([] if importlib.util.find_spec(WHERE_MISSING) else [WHERE_MISSING])]
    sys.path.append(directory)
    sys.meta_path.insert(0, StandIns(directory, names))
    answers, sys.stdout = sys.stdout, sys.stderr
    cache = Cache()
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(getattr(cache, job.pop("do"))(**job)), file=answers, flush=True)


if __name__ == "__main__":
    main()
