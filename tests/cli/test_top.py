"""``prefixpilot top``: frames of a proxy's figures, and what stands in the way of them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.cli.top_frame import Reading, frame, samples_of
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.settings import AdminSettings
from prefixpilot.testing import SimulatedEngine

SOURCE = {"source": "tcp://*:5557", "continuity": "whole", "batches": 42, "lost": 0, "reason": ""}
ROUTE = {
    "tenant": "default",
    "api": "chat",
    "model": "m",
    "requests": 90,
    "hit_rate": 0.625,
    "compared": 80,
    "predicted_tokens": 5000,
    "reported_tokens": 4900,
    "verdicts": {"exact": 79, "off": 1},
    "causes": {"evicted": 1},
}
STATS: dict[str, Any] = {
    "uptime_s": 3725.0,
    "sizes": {"in_flight": 3},
    "requests": {"planned": 90, "passthrough": 10, "fallback": 0},
    "fail_opens": {},
    "treated": {"saved_tokens": 7},
    "cache": {
        "answers_known": 95,
        "answers_unknown": 5,
        "hit_rate": 0.5,
        "prompt_tokens": 1000,
        "cached_tokens": 500,
        "replaced_tokens": 13,
        "annotation_tokens": 38,
    },
    "engine_cache": {
        "state": "EXACT",
        "pages": 1234,
        "contexts": 56,
        "predictions": {
            "events": {"verdicts": {"exact": 79, "off": 1}, "predicted_tokens": 5000, "reported_tokens": 4900}
        },
        "causes": {"evicted": 1, "below_page_size": 0},
        "sources": [SOURCE],
        "routes": [ROUTE],
    },
}


def lines(now: Reading, before: Reading | None = None, width: int = 200) -> dict[str, str]:
    """Rows by their name."""
    shown = frame("http://p", now, before, width=width).split("\n")
    return {line.split("  ")[0].strip(): " ".join(line.split()) for line in shown if line.strip()}


def test_a_frame_says_what_the_proxy_says() -> None:
    shown = frame(
        "http://p",
        Reading(0.0, STATS, {"prefixpilot_planning_seconds_sum": 0.2, "prefixpilot_planning_seconds_count": 100}),
        width=200,
    )
    assert shown.split("\n")[0] == "prefixpilot http://p   up 1 h 02 min   cache EXACT"
    rows = lines(Reading(0.0, STATS))
    assert rows["requests"] == "requests 100 in flight 3 planned 90, passthrough 10"
    assert rows["hit rate"] == "hit rate 50.0 % by the engine's count of 95 answers; 5 did not say"
    assert rows["saved"] == "saved 500 tokens reused by the engine; 20 not sent twice; 38 spent on annotations"
    assert rows["predicted"] == (
        "predicted by events: 80 compared: exact 98.8 %, off 1.2 % predicted 5,000, reported 4,900 tokens"
    )
    assert rows["causes"] == "causes evicted 1"
    assert rows["events"] == "events whole 1 42 batches, 0 lost 1,234 pages, 56 contexts"
    assert rows["default chat m"] == "default chat m 90 62.5 % 5,000 4,900 98.8 % evicted 1"
    assert "added      2.00 ms" in shown


def test_whose_cache_it_is_if_a_hosted_providers() -> None:
    cache = {**STATS["engine_cache"], "state": "UNKNOWN", "provider": "anthropic"}
    shown = frame("http://p", Reading(10.0, {**STATS, "engine_cache": cache}))
    assert shown.splitlines()[0].endswith("cache UNKNOWN   of anthropic, by its documents and counts")


def test_what_is_new_since_the_frame_before() -> None:
    later = {
        **STATS,
        "requests": {"planned": 110},
        "cache": {**STATS["cache"], "prompt_tokens": 1100, "cached_tokens": 580},
    }
    rows = lines(Reading(12.0, later), Reading(10.0, STATS))
    assert rows["requests"].startswith("requests 110 5.0/s ")
    assert rows["hit rate"].endswith("now 80.0 %")


ENGINES: list[dict[str, Any]] = [
    {"url": "http://a", "fit": True, "drained": False, "requests": 60, "in_flight": 2, "prefill_tokens": 1500,
     "prompt_tokens": 4000, "cached_tokens": 1000, "hit_rate": 0.25},
    {"url": "http://b", "fit": False, "drained": False, "requests": 3, "in_flight": 0, "prefill_tokens": 0,
     "prompt_tokens": 0, "cached_tokens": 0, "hit_rate": None},
    {"url": "http://c", "fit": True, "drained": True, "requests": 0, "in_flight": 0, "prefill_tokens": 0,
     "prompt_tokens": 0, "cached_tokens": 0, "hit_rate": None},
]  # fmt: skip


def test_of_several_engines_each_has_a_row_and_what_is_new_of_it() -> None:
    earlier = [{**ENGINES[0], "prompt_tokens": 3000, "cached_tokens": 500}, *ENGINES[1:]]
    rows = lines(Reading(12.0, {**STATS, "engines": ENGINES}), Reading(10.0, {**STATS, "engines": earlier}))
    assert rows["engine"] == "engine requests in flight to compute hit rate now"
    assert rows["0 http://a"] == "0 http://a 60 2 1,500 25.0 % 50.0 %"
    assert rows["1 http://b"] == "1 http://b 3 0 0 - - out"
    assert rows["2 http://c"] == "2 http://c 0 0 0 - - drained"
    assert lines(Reading(0.0, {**STATS, "engines": ENGINES}))["0 http://a"].endswith("25.0 % -")
    assert "engine" not in lines(Reading(0.0, STATS))


def test_what_is_unknown_is_a_dash_and_never_zero() -> None:
    rows = lines(Reading(0.0, {"uptime_s": 61.0, "requests": {}, "cache": {"hit_rate": None, "answers_known": 0}}))
    assert rows["hit rate"] == "hit rate - by the engine's count of 0 answers; - did not say"
    assert rows["predicted"] == "predicted nothing compared yet"
    assert rows["events"] == "events none"
    assert any(name.startswith("no route") for name in rows)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"cache": 1, "engine_cache": [1], "requests": None},
        {"engine_cache": {"routes": [1, {}]}},
        {"engine_cache": {"routes": {}, "sources": [1], "causes": [2]}, "engines": [1, {}, {"engine_cache": 1}]},
        {"engine_cache": {"causes": {"a": {"b": {"c": {"d": {}}}}}, "routes": [{"causes": 1}] * 2}},
    ],
)
def test_a_frame_is_made_of_anything(broken: dict[str, Any]) -> None:
    assert frame("http://p", Reading(0.0, {"requests": {}, **{k: v for k, v in broken.items() if v is not None}}))


def test_no_line_is_too_long_and_no_control_character_gets_through() -> None:
    route = {**ROUTE, "model": "evil\x1b[2Jmodel" * 10}
    stats = {**STATS, "engine_cache": {**STATS["engine_cache"], "routes": [route]}}
    shown = frame("http://p", Reading(0.0, stats), width=60)
    assert max(map(len, shown.split("\n"))) <= 60
    assert "\x1b" not in shown


def test_samples_with_labels_and_comments_are_left_out() -> None:
    text = '# TYPE prefixpilot_a counter\nprefixpilot_a_total 3.0\nprefixpilot_b{c="d"} 4.0\nother 5.0\n'
    assert samples_of(text) == {"prefixpilot_a_total": 3.0}


# -- the command


def test_one_frame_of_a_running_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatedEngine() as engine, serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
        assert main(["top", f"{proxy.url}/v1", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"prefixpilot {proxy.url}   up ")
    assert "\x1b" not in out


def test_what_goes_into_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The causes stand at the end of a route's line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    model, reason = "a-model-with-a-name-" * 10, "no connection, and this is what helps. " * 10
    route = {"tenant": "default", "api": "chat", "model": model, "requests": 1, "causes": {"evicted": 3}}
    stats = {
        "uptime_s": 1,
        "engine_cache": {"state": "DEGRADED", "reason": reason, "followed": True, "routes": [route]},
    }
    with answering(200, json.dumps(stats).encode()) as url:
        assert main(["top", url, "--once"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert any(model in line and line.endswith("evicted 3") for line in lines)
    assert f"because {reason.strip()}" in lines


def test_the_admin_token(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a token of some length"
    (tmp_path / "token").write_text(token + "\n", encoding="utf-8")
    admin = AdminSettings(Secret(token))
    with SimulatedEngine() as engine, serve_in_thread(ProxySettings(engine.base_url, port=0, admin=admin)) as proxy:
        assert main(["top", proxy.url, "--once"]) == 2
        assert "--token-file" in capsys.readouterr().err
        assert main(["top", proxy.url, "--once", "--token-file", str(tmp_path / "token")]) == 0
        monkeypatch.setenv("PREFIXPILOT_ADMIN_TOKEN", token)
        assert main(["top", proxy.url, "--once"]) == 0
        assert token not in "".join(capsys.readouterr())


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize(
    ("status", "body", "exit_status", "why"),
    [
        (200, b"hello", 2, "is not that of a PrefixPilot proxy"),
        (200, b"[]", 2, "is not that of a PrefixPilot proxy"),
        (200, json.dumps({"other": 1}).encode(), 2, "is not that of a PrefixPilot proxy"),
        (404, b"", 2, "is not there"),
        (500, b"", 1, "answers with 500"),
    ],
)
def test_what_is_no_proxy_of_ours(
    status: int, body: bytes, exit_status: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        assert main(["top", url, "--once"]) == exit_status
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1
    assert main(["top", url, "--once"]) == 1  # nothing listens there any more
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["127.0.0.1:1"], ["http://127.0.0.1:1", "--token-file", "/does/not/exist"]])
def test_bad_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *arguments, "--once"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("interval", ["0", "x", "nan", "1e9"])
def test_an_interval_that_cannot_be(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "http://127.0.0.1:1", "--interval", interval])
    assert ended.value.code == 2
    assert "--interval" in capsys.readouterr().err


def test_one_frame_of_a_proxy_before_two_engines(capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatedEngine() as one, SimulatedEngine() as other:
        settings = ProxySettings(one.base_url, engines=(one.base_url, other.base_url), port=0)
        with serve_in_thread(settings) as proxy:
            assert main(["top", proxy.url, "--once"]) == 0
    shown = capsys.readouterr().out
    assert f"0 {one.base_url} " in shown and f"1 {other.base_url} " in shown
