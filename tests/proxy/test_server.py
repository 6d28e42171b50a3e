"""Start and end of the server."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.testing import SimulatedEngine

from .support import Answer, chat, fetch, post_chat, user

SERVE = """
import sys
from prefixpilot.proxy import ProxySettings, serve
serve(ProxySettings(sys.argv[1], port=0, drain_timeout=2), on_listening=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


def is_running(proxy: RunningProxy) -> bool:
    return proxy.running


def test_it_listens_on_loopback_and_ends(engine: SimulatedEngine) -> None:
    proxy = serve_in_thread(ProxySettings(engine.base_url, port=0))
    with proxy:
        assert proxy.url.startswith("http://127.0.0.1:")
        assert is_running(proxy)
        assert fetch(proxy.url, "GET", "/healthz").status == 200
    assert not is_running(proxy)
    with pytest.raises(ConnectionError):
        fetch(proxy.url, "GET", "/healthz")


def test_it_says_what_is_missing_without_a_request_to_itself(
    engine: SimulatedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prefixpilot")
    with serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
        listed = json.loads(fetch(engine.base_url, "GET", "/v1/models").body)["data"][0]["id"]
        assert (proxy.missing(), proxy.first_model()) == (None, listed)
        assert "/readyz" not in caplog.text and "/v1/models" not in caplog.text
    assert (proxy.missing(), proxy.first_model()) == ("the proxy does not answer", None)


def test_what_is_missing_is_what_readyz_says() -> None:
    with serve_in_thread(ProxySettings("http://127.0.0.1:1", port=0)) as proxy:
        assert [proxy.missing()] == json.loads(fetch(proxy.url, "GET", "/readyz").body)["missing"] != [None]
        assert proxy.first_model() is None


def test_a_port_in_use_names_the_remedy(proxy: RunningProxy) -> None:
    port = int(proxy.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match="choose another port"):
        serve_in_thread(ProxySettings("http://x", port=port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_is_under_way_and_returns(engine: SimulatedEngine, number: signal.Signals) -> None:
    engine.delay_s = 0.5
    with subprocess.Popen([sys.executable, "-c", SERVE, engine.base_url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            answers: list[Answer] = []
            asking = threading.Thread(target=lambda: answers.append(post_chat(url, _BODY)))
            asking.start()
            assert engine.wait_for_requests(1)
            process.send_signal(number)
            asking.join(10)
            assert process.wait(10) == 0
            assert process.stdout.read() == "ended\n"
        finally:
            process.kill()
    assert [answer.status for answer in answers] == [200]


def test_a_request_that_does_not_end_does_not_hold_the_proxy_up(engine: SimulatedEngine) -> None:
    engine.delay_s = 60
    proxy = serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=1))
    with proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)), timeout=10)
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert engine.wait_for_requests(1)
    client.close()
    assert not proxy.running


def test_what_the_end_cuts_off_is_told_so(engine: SimulatedEngine) -> None:
    engine.delay_s = 60
    command = [sys.executable, "-c", SERVE.replace("drain_timeout=2", "drain_timeout=1"), engine.base_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            answers: list[Answer] = []
            asking = threading.Thread(target=lambda: answers.append(post_chat(url, _BODY)))
            asking.start()
            assert engine.wait_for_requests(1)
            process.terminate()
            asking.join(10)
            assert process.wait(10) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert [(answer.status, answer.json()["error"]["code"]) for answer in answers] == [(503, "ending")]


_BODY: dict[str, Any] = chat([user("Q?")], ["A"])
