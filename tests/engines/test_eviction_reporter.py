"""Notices of eviction reach the proxy, and never make the engine wait."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prefixpilot.engines.eviction_reporter import EvictionReporter
from prefixpilot.errors import ConfigError
from prefixpilot.testing import CloseConnection, Respond, SimulatedEngine


def test_ids_are_sent_in_order_to_the_proxy() -> None:
    with SimulatedEngine() as proxy, EvictionReporter(proxy.base_url, token="secret") as reporter:
        reporter.report(["a", "b"])
        reporter.report(["c"])
        assert proxy.wait_for_requests(1)
    assert {(r.method, r.path, r.header("authorization")) for r in proxy.requests} == {
        ("POST", "/evict", "Bearer secret")
    }
    assert [each for r in proxy.requests for each in r.json()["request_ids"]] == ["a", "b", "c"]
    assert (reporter.sent, reporter.dropped) == (3, 0)


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    reporter = EvictionReporter("http://127.0.0.1:9", most_queued=3)
    reporter.report([str(i) for i in range(10)])
    assert reporter.dropped == 7


@pytest.mark.parametrize("fault", [Respond(503, b"{}"), CloseConnection()])
def test_what_is_not_taken_is_dropped_and_counted(fault: Respond | CloseConnection) -> None:
    with SimulatedEngine(fault=fault) as proxy:
        with EvictionReporter(proxy.base_url) as reporter:
            reporter.report(["a"])
            assert proxy.wait_for_requests(1)
        assert (reporter.sent, reporter.dropped) == (0, 1)


def test_a_proxy_that_is_not_there_is_no_error() -> None:
    with SimulatedEngine() as proxy:
        url = proxy.base_url
    with EvictionReporter(url) as reporter:
        reporter.report(["a"])
        assert reporter.start() is reporter
    assert (reporter.sent, reporter.dropped) == (0, 1)
    reporter.stop()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        EvictionReporter(url)


PROBE = """
import json, sys
from prefixpilot.engines.vllm_plugin import register
before = set(sys.modules)
register(); register()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_plugin_does_nothing_unless_the_proxy_is_named() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PREFIXPILOT_EVICT_URL"}
    run = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert json.loads(run.stdout) == []


def test_loading_the_plugin_loads_no_third_party_package() -> None:
    code = (
        "import sys; import prefixpilot.engines.vllm_plugin, json; "
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(run.stdout)).isdisjoint({"vllm", "numpy", "zmq", "msgspec", "torch", "http"})


def test_the_connector_is_offered_to_vllm_as_its_registry_wants_it() -> None:
    """A registry of the same shape stands in for vLLM's: the real one is asked in ``tests/vllm``."""
    code = """
import sys, types
class KVConnectorFactory:
    calls = []
    @classmethod
    def register_connector(cls, name, module_path, class_name):
        if cls.calls:
            raise ValueError("already registered")
        cls.calls.append((name, module_path, class_name))
factory = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.factory")
factory.KVConnectorFactory = KVConnectorFactory
parts = factory.__name__.split(".")
for end in range(1, len(parts)):
    sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
sys.modules[factory.__name__] = factory
from prefixpilot.engines.vllm_plugin import register
register(); register()
print(KVConnectorFactory.calls)
"""
    environment = {**os.environ, "PREFIXPILOT_EVICT_URL": "http://127.0.0.1:1"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert (
        run.stdout.strip() == "[('PrefixPilotEvictions', 'prefixpilot.engines.vllm_connector', 'PrefixPilotEvictions')]"
    )


def test_the_project_declares_the_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["prefixpilot_evictions"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
