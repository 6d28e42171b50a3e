"""SGLang's RadixCache, run over prompts of numbered blocks. Run by `benchmarks.referee` with a Python that has torch.

    python referee_side.py DIRECTORY < jobs > results

DIRECTORY holds SGLang (`pip install --no-deps --target DIRECTORY sglang==0.5.23`). Each line of the jobs is a JSON
object: `capacity` in tokens or null, and `prompts`, each a list of [block, tokens]. Each line
of the results: `cached`, tokens hit in all.

The cache's own modules run as they are. What they import besides, and a cache without memory pools never calls, is
replaced by the empty modules named in STAND_INS, so that neither a GPU nor its libraries are wanted.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from array import array
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
    "zmq",
)
"""Kernels, model configurations, memory pools, libraries of models and of the server."""
NOT_RUN = "sglang"
"""A package whose modules are found, but whose `__init__` imports the server, and is not run."""


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
    """Gives an empty module for each name of STAND_INS and below."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        stands_in = any(name == one or name.startswith(f"{one}.") for one in STAND_INS)
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


def run(capacity: int | None, prompts: list[list[list[int]]]) -> int:
    """Tokens of all prompts that the cache served, as its scheduler uses it.

    A prompt is matched, what it matched is locked, room is made for the rest, and it is inserted. Of a prompt larger
    than the cache only as much as the cache holds is inserted.
    """
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    cache = RadixCache.create_simulated(mock_allocator=Allocator(torch.device("cpu")))
    cached = 0
    for prompt in prompts:
        ids = array("q")
        for block, tokens in prompt:
            ids.extend(range(block << 20, (block << 20) + tokens))
        found = cache.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        cached += found.device_prefix_len
        kept = ids if capacity is None else ids[:capacity]
        wanted = cache.total_size() + len(kept) - min(found.device_prefix_len, len(kept))
        if capacity is not None and wanted > capacity:
            cache.inc_lock_ref(found.last_device_node)
            cache.evict(EvictParams(num_tokens=wanted - capacity))
            cache.dec_lock_ref(found.last_device_node)
        cache.insert(InsertParams(key=RadixKey(kept), value=torch.arange(len(kept))))
        if capacity is not None and cache.total_size() > capacity:
            raise RuntimeError(f"the cache holds {cache.total_size()} tokens, of {capacity}")
    return cached


def main() -> None:
    directory = sys.argv[1]
    sys.path.append(directory)
    sys.meta_path.insert(0, StandIns(directory))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({"cached": run(job["capacity"], job["prompts"])}), flush=True)


if __name__ == "__main__":
    main()
