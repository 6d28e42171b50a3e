"""What the engine's windows take."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.proxy.windows import Windows


@pytest.mark.parametrize(
    ("entry", "tokens"),
    [
        ({"max_model_len": 32768}, 32768),
        ({"meta": {"n_ctx": 8192, "n_ctx_train": 131072}}, 8192),
        ({"context_length": 4096}, 4096),
        ({"max_model_len": None, "meta": None}, None),
        ({"max_model_len": True}, None),
        ({"max_model_len": "8192"}, None),
        ({}, None),
    ],
)
def test_engines_say_it_in_their_own_ways(entry: dict[str, Any], tokens: int | None) -> None:
    windows = Windows()
    windows.learn({"object": "list", "data": [{"id": "m", **entry}]})
    assert windows.tokens("m") == tokens


@pytest.mark.parametrize("document", [None, [], {"data": None}, {"data": [1, {"id": 3, "max_model_len": 5}]}, "x"])
def test_what_is_no_list_of_models_is_left_alone(document: Any) -> None:
    windows = Windows()
    windows.learn({"data": [{"id": "m", "max_model_len": 100}]})
    windows.learn(document)
    assert windows.tokens("m") == 100


def test_one_window_is_that_of_any_name_several_are_not() -> None:
    windows = Windows()
    assert windows.bytes("m", 0) is None
    assert (windows.wanted(), windows.wanted()) == (True, False)
    windows.learn({"data": [{"id": "a", "max_model_len": 100}]})
    assert windows.tokens("alias") == 100
    windows.learn({"data": [{"id": "a", "max_model_len": 100}, {"id": "b", "max_model_len": 200}]})
    assert (windows.tokens("b"), windows.tokens("alias")) == (200, None)


def test_the_setting_comes_first() -> None:
    windows = Windows(50)
    windows.learn({"data": [{"id": "m", "max_model_len": 100}]})
    assert windows.tokens("m") == 50


def test_room_for_the_answer_is_left_but_never_all_of_it() -> None:
    windows = Windows(1000)
    assert windows.bytes("m", 0) == 4000
    assert windows.bytes("m", 600) == 1600
    assert windows.bytes("m", 5000) == 1000


def test_what_the_engine_counts_corrects_the_estimate() -> None:
    windows = Windows(1000)
    windows.count("m", 3000, 1000)
    assert windows.bytes_per_token("m") == 3.0
    for _ in range(60):
        windows.count("m", 2000, 1000)
    assert windows.bytes_per_token("m") == pytest.approx(2.0, abs=0.01)
    assert windows.bytes_per_token("other") == 4.0
    windows.count("m", 10, 1000)
    windows.count("m", 10, 0)
    windows.count("m", 10**6, 1)
    assert windows.bytes_per_token("m") == pytest.approx(2.0, abs=0.01), "no text: not believed"
    for n in range(200):
        windows.count(f"m{n}", 3000, 1000)
    assert len(windows._counted) == 64
