"""What the connector does with what vLLM tells it. Stand-ins take the place of vLLM's base classes; ``tests/vllm`` asks
the real ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from prefixpilot.engines.vllm_plugin import CONNECTOR, MODULE, URL_VARIABLE
from prefixpilot.testing import SimulatedEngine

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
CONFIG = SimpleNamespace(cache_config=SimpleNamespace(block_size=4))


class Role(Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    def __init__(self, vllm_config: Any, role: Role, kv_cache_config: Any) -> None:
        self.role = role


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class, imported beside stand-ins."""
    names = {"KVConnectorBase_V1": Base, "KVConnectorRole": Role, "SupportsHMA": type("SupportsHMA", (), {})}
    parts = f"{V1}.base".split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    vars(sys.modules[V1]).update(names)
    vars(sys.modules[f"{V1}.base"])["KVConnectorMetadata"] = type("KVConnectorMetadata", (), {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield getattr(importlib.import_module(MODULE), CONNECTOR)
    del sys.modules[MODULE]


def step(new: list[tuple[list[int], int]], more: list[list[int] | None] = []) -> SimpleNamespace:  # noqa: B006
    """What the scheduler hands out: (blocks, computed tokens) of new requests, new blocks of running ones."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=(b,), num_computed_tokens=n) for b, n in new],
        scheduled_cached_reqs=SimpleNamespace(new_block_ids=[None if b is None else (b,) for b in more]),
    )


def finished(request_id: str, prompt_tokens: int) -> SimpleNamespace:
    return SimpleNamespace(request_id=request_id, num_prompt_tokens=prompt_tokens)


def told(proxy: SimulatedEngine) -> list[str]:
    return [each for request in proxy.requests for each in request.json()["request_ids"]]


def test_a_request_is_reported_when_a_page_of_its_prompt_goes_to_another(
    connector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimulatedEngine() as proxy:
        monkeypatch.setenv(URL_VARIABLE, proxy.base_url)
        ours = connector(CONFIG, Role.SCHEDULER, None)
        assert ours.get_num_new_matched_tokens(finished("x", 9), 0) == (0, False)
        ours.build_connector_meta(step([([1, 2, 3], 0)]))
        assert ours.request_finished(finished("a", 9), [1, 2, 3]) == (False, None)
        ours.build_connector_meta(step([([1, 2, 4], 8)]))  # a hit of two pages: nothing of "a" is taken
        assert ours.request_finished_all_groups(finished("b", 12), ([1, 2, 4], [7])) == (False, None)
        ours.build_connector_meta(step([([3], 0)], [None, [5]]))  # the last page of "a" is not full: not its prompt's
        ours.build_connector_meta(step([], [[4]]))
        ours.build_connector_meta(step([([9, 1], 4)]))
        ours.request_finished(finished("c", 8), [9, 1])
        assert ours.reset_cache()
        ours.shutdown()
        assert told(proxy) == ["b", "a", "c"]


def test_workers_and_unnamed_proxies_report_nothing(connector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimulatedEngine() as proxy:
        monkeypatch.setenv(URL_VARIABLE, proxy.base_url)
        worker = connector(CONFIG, Role.WORKER, None)
        monkeypatch.delenv(URL_VARIABLE)
        for ours in (worker, connector(CONFIG, Role.SCHEDULER, None)):
            ours.request_finished(finished("a", 8), [1, 2])
            ours.build_connector_meta(step([([1], 0)]))
            ours.update_state_after_alloc(None, None, 0)
            ours.start_load_kv(None)
            ours.wait_for_layer_load("0")
            ours.save_kv_layer("0", None, None)
            ours.wait_for_save()
            ours.shutdown()
        assert proxy.requests == ()
