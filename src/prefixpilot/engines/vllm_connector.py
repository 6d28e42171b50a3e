"""A KV connector of vLLM's that moves no KV: it sees which requests' pages are given to others, and reports them.

vLLM (written against 0.32) makes one in its scheduler's process and one in each worker; the latter does nothing. The
scheduler tells it of each finished request and its blocks, and of the blocks that each step hands out; from that
:class:`~prefixpilot.engines.held_pages.HeldPages` knows who has lost a page. It looks at the first KV cache group only.
"""

from __future__ import annotations

import os
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from prefixpilot.engines.eviction_reporter import EvictionReporter
from prefixpilot.engines.held_pages import HeldPages
from prefixpilot.engines.vllm_plugin import TOKEN_VARIABLE, URL_VARIABLE

NULL_BLOCK: Final = 0
"""The number that vLLM gives to no block."""


class NothingToMove(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler's side tells the workers' side."""


class PrefixPilotEvictions(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """See the module. Every method returns at once; none of them raises for what it does not know."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._page_size = int(vllm_config.cache_config.block_size)
        self._held = HeldPages()
        self._reporter: EvictionReporter | None = None
        url = os.environ.get(URL_VARIABLE)
        if role is KVConnectorRole.SCHEDULER and url:
            self._reporter = EvictionReporter(url, token=os.environ.get(TOKEN_VARIABLE)).start()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """No token comes from elsewhere."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is loaded."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Called for each step, with the blocks that it hands out."""
        taken: list[int] = []
        for new in scheduler_output.scheduled_new_reqs:
            if new.block_ids:
                taken.extend(new.block_ids[0][new.num_computed_tokens // self._page_size :])
        for blocks in scheduler_output.scheduled_cached_reqs.new_block_ids:
            if blocks:
                taken.extend(blocks[0])
        self._report(self._held.taken(taken))
        return NothingToMove()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks are about to be free, with their contents."""
        pages = request.num_prompt_tokens // self._page_size
        full = [block for block in block_ids[:pages] if block != NULL_BLOCK]
        self._report(self._held.finished(request.request_id, full))
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, where there are several KV cache groups."""
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def reset_cache(self) -> bool | None:
        """The prefix cache is emptied, connectors included."""
        self._report(self._held.cleared())
        return True

    def shutdown(self) -> None:
        if self._reporter is not None:
            self._reporter.stop()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def _report(self, request_ids: list[str]) -> None:
        if self._reporter is not None and request_ids:
            self._reporter.report(request_ids)
