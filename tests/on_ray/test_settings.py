"""Arguments of the applications: as ``serve run`` gives them (texts) and as a YAML file does (values)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.ray.settings import EngineSettings, RaySettings, ScaleSettings, arguments, read_arguments

ENGINE = "http://127.0.0.1:8000"


def read(**args: Any) -> RaySettings:
    return arguments(RaySettings, args)


def test_texts_with_dots_and_nested_values_are_the_same() -> None:
    texts = read(**{"engine": ENGINE, "scale.replicas": "3", "scale.cpus": "0.5", "gate": "true"})
    values = read(engine=ENGINE, scale={"replicas": 3, "cpus": 0.5}, gate=True)
    assert texts == values
    assert (values.scale.replicas, values.scale.cpus, values.gate) == (3, 0.5, True)


def test_several_engines_as_a_list() -> None:
    engines = [f"{ENGINE}/engines/{n}" for n in range(3)]
    assert read(engines=engines).engines == tuple(engines)
    assert read(engines=",".join(engines)).engine == engines[0]


def test_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f'engine = "{ENGINE}"\n[scale]\nreplicas = 4\n')
    monkeypatch.setenv("PREFIXPILOT_SCALE_DOORS", "2")
    found = read_arguments({"config": str(file), "scale": {"replicas": 5}})
    assert found.scale == ScaleSettings(replicas=5, doors=2)


def test_each_replica_has_a_directory_of_its_own(tmp_path: Path) -> None:
    settings = read(engine=ENGINE, store={"state_dir": str(tmp_path)})
    assert [settings.proxy(rank).store.state_dir for rank in (0, 1)] == [
        str(tmp_path / "replica-0"),
        str(tmp_path / "replica-1"),
    ]
    assert read(engine=ENGINE).proxy(1).store.state_dir is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "engine: is not given"),
        ({"engine": "nonsense"}, "engine: is 'nonsense'"),
        ({"engines": [ENGINE, f"{ENGINE}/v1"]}, "engines: names .* twice .* name each engine once"),
        ({"engine": ENGINE, "store": {"redis_url": "redis://h/abc"}}, "store.redis_url: names a database 'abc'"),
        ({"engine": ENGINE, "replicas": 2}, "near are: scale.replicas"),
        ({"engine": ENGINE, "scale": {"policy": "random"}}, "context-aware, round-robin"),
        ({"engine": ENGINE, "scale": {"replicas": 0}}, "scale.replicas"),
        ({"engine": ENGINE, "scale": {"replicas": "two"}}, "use an integer"),
        ({"engine": ENGINE, "scale": {"cpus": -1}}, "scale.cpus"),
        ({"engine": ENGINE, "scale": {"max_queued": 0}}, "or -1"),
        ({"engine": ENGINE, "admin.token": "x" * 20}, "environment or in a file"),
    ],
)
def test_what_cannot_be_used_is_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(RaySettings, args)


def test_the_file_for_serve_is_made_of_arguments_that_are_read() -> None:
    yaml = pytest.importorskip("yaml")
    file = Path(__file__).resolve().parents[2] / "deploy" / "serve.yaml"
    applications = yaml.safe_load(file.read_text())["applications"]
    *engines, proxy = applications
    read = arguments(RaySettings, proxy["args"])
    assert read.engines == tuple(f"http://127.0.0.1:{engine['args']['port']}" for engine in engines)
    assert read.scale.replicas == 2
    assert [each["import_path"].partition(":")[2] for each in applications] == ["build"] * 3
    for engine in engines:
        assert arguments(EngineSettings, engine["args"]).kind == "embedded"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"kind": "best"}, "use one of: embedded, simulated"),
        ({"cache_tokens": 0}, "cache_tokens"),
        ({"cpus": -1}, "cpus"),
        ({"port": 70_000}, "port"),
        ({"modell": "x.gguf"}, "near are: model"),
    ],
)
def test_engines_that_cannot_be_started(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(EngineSettings, args)
