"""Engines to compare on: each cell gets one whose cache is cold."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from prefixpilot.bench.comparison.client import Target
from prefixpilot.bench.comparison.predicted import BARE, LlamaCppCache, Model
from prefixpilot.errors import EngineError
from prefixpilot.prefix_cache import RadixPrefixCache

_RESETS: Final = ("/reset_prefix_cache", "/flush_cache")
"""vLLM (with VLLM_SERVER_DEV_MODE=1) and SGLang."""


class BenchEngine(Protocol):
    """Where cells run."""

    @property
    def name(self) -> str:
        """For the report."""
        ...

    @property
    def one_each(self) -> bool:
        """Whether each cell gets an engine of its own, so that cells can run side by side."""
        ...

    def model_of_cache(self, cache_tokens: int | None) -> Model | None:
        """A model of its cache, empty, of the capacity that :meth:`cold` gets; ``None``: it is not known."""
        ...

    def cold(self, cache_tokens: int | None, cell: str) -> AbstractContextManager[Target]:
        """The engine with an empty cache, for one cell.

        Args:
            cache_tokens: capacity wanted; engines that cannot be told theirs ignore it.
            cell: name of the cell.
        """
        ...


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated engine: a radix cache of the size asked for, prefill at a given speed, no model.

    Attributes:
        prefill_rate: tokens a second; ``None``: at once.
    """

    prefill_rate: float | None = None

    @property
    def name(self) -> str:
        """See :class:`BenchEngine`."""
        return "simulated" if self.prefill_rate is None else f"simulated, {self.prefill_rate:g} tokens/s"

    @property
    def one_each(self) -> bool:
        """See :class:`BenchEngine`."""
        return True

    def model_of_cache(self, cache_tokens: int | None) -> Model | None:
        """See :class:`BenchEngine`."""
        return Model(RadixPrefixCache(cache_tokens), BARE)

    @contextmanager
    def cold(self, cache_tokens: int | None, cell: str) -> Iterator[Target]:
        """See :class:`BenchEngine`."""
        from prefixpilot.testing import SimulatedEngine

        cache = RadixPrefixCache(cache_tokens)
        with SimulatedEngine(cache=cache, prefill_tokens_per_s=self.prefill_rate) as engine:
            yield Target(engine.base_url)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedded llama.cpp, started anew for each cell.

    Attributes:
        model: a GGUF file; ``None``: SmolLM2-135M.
        parallel: slots.
        context_tokens: of a slot.
        kv_bytes_per_token: of the store of earlier prompts, which gets ``cache_tokens`` beside the slots.
        threads: that compute; ``None``: one for each core.
    """

    model: Path | None = None
    parallel: int = 1
    context_tokens: int = 8192
    kv_bytes_per_token: int = 23_040
    threads: int | None = None

    @property
    def name(self) -> str:
        """See :class:`BenchEngine`."""
        return f"embedded llama.cpp, {self.model.stem if self.model else 'SmolLM2-135M'}, {self.parallel} slots"

    @property
    def one_each(self) -> bool:
        """See :class:`BenchEngine`."""
        return True

    def model_of_cache(self, cache_tokens: int | None) -> Model | None:
        """See :class:`BenchEngine`."""
        from prefixpilot.engines.llamacpp import CACHE_RAM_MIB

        store = CACHE_RAM_MIB * 2**20 // self.kv_bytes_per_token if cache_tokens is None else cache_tokens
        return Model(LlamaCppCache(store, self.parallel))

    @contextmanager
    def cold(self, cache_tokens: int | None, cell: str) -> Iterator[Target]:
        """See :class:`BenchEngine`."""
        from prefixpilot.engines.llamacpp import CACHE_RAM_MIB, EmbeddedEngine
        from prefixpilot.engines.models import resolve_model

        store = CACHE_RAM_MIB if cache_tokens is None else -(-cache_tokens * self.kv_bytes_per_token // 2**20)
        with EmbeddedEngine(
            resolve_model(self.model),
            parallel=self.parallel,
            context_tokens=self.context_tokens,
            cache_ram_mib=store,
            threads=self.threads,
        ) as engine:
            yield Target(engine.base_url)


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that runs already. Its cache is emptied by its own call; where it has none, each cell begins its
    prompts with a line of its own.

    Attributes:
        url: without ``/v1``.
    """

    url: str

    @property
    def name(self) -> str:
        """See :class:`BenchEngine`."""
        return self.url

    @property
    def one_each(self) -> bool:
        """See :class:`BenchEngine`."""
        return False

    def model_of_cache(self, cache_tokens: int | None) -> Model | None:
        """See :class:`BenchEngine`."""
        return None

    @contextmanager
    def cold(self, cache_tokens: int | None, cell: str) -> Iterator[Target]:
        """See :class:`BenchEngine`."""
        emptied = any(_posted(f"{self.url}{path}") for path in _RESETS)
        yield Target(self.url, None if emptied else f"Run {cell} {time.time_ns()}.")

    def model(self) -> str:
        """The first that it lists.

        Raises:
            EngineError: it does not answer.
        """
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10) as response:
                return str(json.load(response)["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise EngineError(f"{self.url}/v1/models lists no model: {error}") from error


def _posted(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
