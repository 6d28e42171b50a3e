"""Engines from flags, environment and file: one, or several."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from prefixpilot.cli.serve_settings import ServeSettings, add_settings, read_settings
from prefixpilot.errors import ConfigError

A, B, C = "http://a:1", "http://b:1/v1", "http://c:1"


def given(*words: str, environ: Mapping[str, str] | None = None) -> ServeSettings:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return read_settings(parser.parse_args(words), environ or {}).settings


@pytest.mark.parametrize(
    ("words", "environ", "engines"),
    [
        (["--engine", A], {}, (A,)),
        (["--engine", A, "--engine", B], {}, (A, B)),
        (["--engines", f"{A},{B}"], {}, (A, B)),
        ([], {"PREFIXPILOT_ENGINES": f"{A}, {B}"}, (A, B)),
        (["--engine", C], {"PREFIXPILOT_ENGINES": f"{A},{B}"}, (C,)),
        (["--engine", C, "--engine", B], {"PREFIXPILOT_ENGINES": f"{A},{B}"}, (C, B)),
    ],
)
def test_however_they_are_given(words: list[str], environ: dict[str, str], engines: tuple[str, ...]) -> None:
    settings = given(*words, environ=environ)
    assert (settings.engine, settings.all_engines) == (engines[0], engines)


def test_a_list_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'engines = ["{A}", "{B}"]\nrouting = "round_robin"\n[fleet]\nretries = 0\n')
    settings = given("--config", str(file))
    assert (settings.all_engines, settings.routing, settings.fleet.retries) == ((A, B), "round_robin", 0)
    assert given("--config", str(file), "--engine", C).all_engines == (C,)


def test_one_here_and_others_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="engines: begins with http://a:1, and the engine is http://c:1"):
        given(environ={"PREFIXPILOT_ENGINE": C, "PREFIXPILOT_ENGINES": f"{A},{B}"})


def test_the_embedded_engine_stands_alone() -> None:
    with pytest.raises(ConfigError, match="engines: has the embedded engine beside others"):
        given("--engine", "embedded", "--engine", A)


def test_an_empty_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="--engine: is empty"):
        given("--engine", A, "--engine", "")


def test_what_each_engine_holds_the_index_may_hold_of_all() -> None:
    settings = given("--engine", A, "--engine", B, "--cache-tokens", "1000")
    assert settings.pilot.cache_tokens == 2000
    second = settings.of_engine(1)
    assert (second.engine, second.all_engines, second.pilot.cache_tokens) == (B, (B,), 1000)


@pytest.mark.parametrize(
    ("words", "environ", "named"),
    [
        (["--engine", A, "--engine", A], {}, r"\(set by --engine\)"),
        (["--engines", f"{A},{A}"], {}, r"\(set by --engines\)"),
        ([], {"PREFIXPILOT_ENGINES": f"{A},{A}"}, r"\(set by PREFIXPILOT_ENGINES\)"),
    ],
)
def test_an_error_names_what_was_written(words: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=f"names {A} twice {named}"):
        given(*words, environ=environ)
