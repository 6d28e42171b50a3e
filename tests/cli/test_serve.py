"""``prefixpilot serve`` as a process: ready means ready, the printed curl works, and no way out leaves an engine."""

from __future__ import annotations

import contextlib
import gc
import gzip
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot import ContextPilot, PilotConfig, Request
from prefixpilot.cli import main
from prefixpilot.cli.ready import curl_line, ready_text
from prefixpilot.cli.serve import GC_THRESHOLD, _leave_to_itself, load_index
from prefixpilot.errors import ConfigError
from prefixpilot.testing.simulated_engine import SimulatedEngine

BOUND_S = 60.0


@dataclass(frozen=True)
class Serving:
    """A running ``prefixpilot serve`` and what it printed until it was ready."""

    process: subprocess.Popen[str]
    text: str

    @property
    def url(self) -> str:
        return self._find(r"ready on (http://\S+)/v1 ")

    @property
    def engine_url(self) -> str:
        return self._find(r"llama\.cpp on (http://[\d.:]+)")

    @property
    def curl(self) -> str:
        return self._find(r"^(curl .*)$")

    def _find(self, pattern: str) -> str:
        match = re.search(pattern, self.text, flags=re.MULTILINE)
        assert match is not None, self.text
        return match[1]


def read_until_ready(process: subprocess.Popen[str]) -> str:
    """Stdout up to the last line of the ready text. Kills the process, which ends the read, after the bound."""
    assert process.stdout is not None
    watchdog = threading.Timer(BOUND_S, process.kill)
    watchdog.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    watchdog.cancel()
    return "".join(lines)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Serving]:
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Serving(process, read_until_ready(process))
        finally:
            process.kill()


def refused(*options: str) -> str:
    """The one line on stderr of a ``serve`` that ends with status 2."""
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert run.returncode == 2, run
    return reason(run.stderr)


def reason(stderr: str) -> str:
    lines = [line for line in stderr.split("\n") if line]
    assert lines[-1].startswith("prefixpilot serve: "), stderr
    return lines[-1]


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(_address(url), timeout=2):
        return True
    return False


def wait_until_silent(url: str) -> bool:
    deadline = time.monotonic() + BOUND_S
    while answers(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def request_of(curl: str) -> tuple[str, str]:
    """URL and body of a printed curl line, split as a shell would."""
    words = shlex.split(curl)
    assert words[:2] == ["curl", "-s"]
    return words[2], words[words.index("-d") + 1]


def post(url: str, body: str) -> dict[str, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=BOUND_S)
    with contextlib.closing(connection):
        connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, answer
        assert json.loads(response.headers["X-PrefixPilot-Plan"])["mode"] == "on"
        return answer


@pytest.mark.engine
def test_embedded_answers_the_printed_curl_line_and_sigterm_ends_both(tiny_model: Path) -> None:
    with serving("--engine", "embedded", "--model", str(tiny_model), "--context", "1024", "--threads", "1") as it:
        answer = post(*request_of(it.curl))
        assert answer["choices"][0]["message"]["role"] == "assistant"
        again = post(*request_of(it.curl))
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        if shutil.which("curl") and shutil.which("sh"):
            pasted = subprocess.run(["sh", "-c", it.curl], capture_output=True, text=True, timeout=BOUND_S, check=True)
            assert json.loads(pasted.stdout)["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        assert answers(it.engine_url)
        it.process.send_signal(signal.SIGTERM)
        assert it.process.wait(BOUND_S) == 0
        assert not answers(it.engine_url)
        assert not answers(it.url)


@pytest.mark.engine
def test_what_its_slots_hold_outlives_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    options = ["--engine", "embedded", "--model", str(tiny_model), "--context", "1024", "--threads", "1"]
    options += ["--state-dir", str(tmp_path / "state")]
    blocks = [f"Document {n}: the ferry of pier {n} leaves when the tide turns. " * 8 for n in range(4)]
    body = {"model": "m", "messages": [{"role": "user", "content": "When?"}], "context_blocks": blocks, "max_tokens": 2}
    cached = []
    for _ in range(2):
        with serving(*options) as it:
            usage = post(f"{it.url}/v1/chat/completions", json.dumps(body))["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(BOUND_S) == 0
    assert cached[0] == 0
    assert cached[1] > 0.9 * usage["prompt_tokens"] > 200


@pytest.mark.engine
def test_kill_9_ends_the_engine_too(tiny_model: Path) -> None:
    with serving("--engine", "embedded", "--model", str(tiny_model), "--context", "512", "--threads", "1") as it:
        assert answers(it.engine_url)
        it.process.kill()
        it.process.wait(BOUND_S)
        assert wait_until_silent(it.engine_url)


@pytest.mark.engine
def test_sigterm_while_the_engine_starts_ends_with_status_0(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--engine", "embedded", "--model", str(tiny_model)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "starting the embedded engine" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(BOUND_S) == 0
        finally:
            process.kill()


STRUCK_WITHIN_EXEC = """
import os, signal
from prefixpilot.cli import main, serve

def struck(settings):
    exec("os.kill(os.getpid(), signal.SIGTERM)\\nfor _ in range(1000): pass")

serve._serve = struck
raise SystemExit(main(["serve", "--engine", "http://127.0.0.1:9"]))
"""


def test_a_signal_within_an_import_ends_it_with_status_0(tmp_path: Path) -> None:
    (tmp_path / "struck.py").write_text(STRUCK_WITHIN_EXEC)
    done = subprocess.run([sys.executable, "-m", "struck"], cwd=tmp_path, timeout=BOUND_S, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_a_running_engine_a_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    with SimulatedEngine() as engine, serving("--engine", engine.base_url + "/v1") as it:
        post(*request_of(it.curl))
        assert "The swimming pool opens at 7 every day." in engine.requests[-1].body.decode()
        it.process.send_signal(number)
        assert it.process.wait(BOUND_S) == 0


def test_mode_off_is_the_default_that_was_asked_for() -> None:
    with SimulatedEngine() as engine, serving("--engine", engine.base_url, "--mode", "off") as it:
        assert "mode: off" in it.text
        with pytest.raises(AssertionError):
            post(*request_of(it.curl))


def test_what_may_be_done_to_a_request_reaches_the_planner() -> None:
    limits = ("--max-displacement", "0", "--annotate", "all", "--admission-window-ms", "5")
    with SimulatedEngine() as engine, serving("--engine", engine.base_url, *limits) as it:
        for blocks in (["A", "B"], ["B", "A"]):
            body = {"model": "m", "messages": [{"role": "user", "content": "Q?"}], "context_blocks": blocks}
            post(f"{it.url}/v1/chat/completions", json.dumps(body))
        assert "[Doc 1]\\nB\\n\\n[Doc 2]\\nA\\n\\nQ?" in engine.requests[-1].body.decode()


def test_a_port_in_use_names_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--engine", "http://127.0.0.1:9", "--port", str(port))
    assert str(port) in line and "choose another port" in line


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--engine", "127.0.0.1:8000"], "engine"),
        (["--engine", "http://127.0.0.1:9", "--model", "x.gguf"], "--model"),
        (["--engine", "http://127.0.0.1:9", "--port", "70000"], "port: is 70000"),
        (["--engine", "http://127.0.0.1:9", "--admission-window-ms", "5000"], "admission_window_ms: is 5000"),
        (["--engine", "http://127.0.0.1:9", "--annotate", "few"], "--annotate"),
        (["--engine", "http://127.0.0.1:9", "--cache-tokens", "0"], "cache_tokens"),
        (["--engine", "http://127.0.0.1:9", "--index", "no-such-file.json"], "--index"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = [] if "--port" in options else ["--port", "0"]
    assert main(["serve", *options, *port]) == 2
    assert named in reason(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "named"), [(["--model", "no-such-file.gguf"], "model"), (["--context", "0"], "context")]
)
def test_bad_input_for_the_engine_is_one_line_and_status_2(options: list[str], named: str) -> None:
    """As a process: logs are set up by then."""
    assert named in refused("--engine", "embedded", "--port", "0", *options)


def test_an_unknown_mode_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--engine", "embedded", "--mode", "sideways"]) == 2
    assert "--mode" in capsys.readouterr().err


def run_serve(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", *options]
    variables = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False, env=variables)


def test_the_settings_in_force_are_printed_as_a_file_that_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('engine = "http://127.0.0.1:9"\nport = 1\n[log]\nformat = "json"\n')
    run = run_serve("--config", str(path), "--print-config", "--port", "3", PREFIXPILOT_HOST="0.0.0.0")
    assert run.returncode == 0, run.stderr
    assert "0.0.0.0 is open to others" in run.stderr
    assert f'engine = "http://127.0.0.1:9"  # {path}:1' in run.stdout
    assert "port = 3  # --port" in run.stdout
    assert 'host = "0.0.0.0"  # PREFIXPILOT_HOST' in run.stdout
    path.write_text(run.stdout)
    again = run_serve("--print-config", PREFIXPILOT_CONFIG=str(path))
    assert [line.partition("  #")[0] for line in again.stdout.splitlines()] == [
        line.partition("  #")[0] for line in run.stdout.splitlines()
    ]


def test_log_lines_are_json_on_stderr_if_asked_for() -> None:
    with SimulatedEngine() as engine:
        command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--port", "0", "--engine", engine.base_url]
        with subprocess.Popen(
            [*command, "--log-format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                it = Serving(process, read_until_ready(process))
                post(*request_of(it.curl))
                process.send_signal(signal.SIGTERM)
                _, logged = process.communicate(timeout=BOUND_S)
            finally:
                process.kill()
    lines = [json.loads(line) for line in logged.splitlines()]
    (chat,) = [line for line in lines if line.get("api") == "chat"]
    assert (chat["status"], chat["outcome"], chat["logger"]) == (200, "planned", "prefixpilot.access")
    assert "swimming pool" not in logged


def test_help_names_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    for word in ("vLLM", "--enable-prompt-tokens-details", "SGLang", "llama-server", "cloud API", "X-PrefixPilot-Mode"):
        assert word in text


@pytest.mark.parametrize("name", ["index.json", "index.json.gz"])
def test_an_index_is_carried_over(tmp_path: Path, name: str) -> None:
    source = ContextPilot()
    source.optimize(Request.from_texts("r1", ["a", "b", "c"]))
    data = json.dumps(source.snapshot()).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    pilot = load_index(path, PilotConfig())
    assert pilot.live_requests == 1
    assert pilot.optimize(Request.from_texts("r2", ["c", "b", "a"])).prefix_len == 3


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.json", b"{", "not JSON"),
        ("a.json", b"\xff\xfe", "not JSON"),
        ("a.json", b"[]", "no JSON object"),
        ("a.json", b"{}", "not a snapshot"),
        ("a.json.gz", b"{}", "cannot be read"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-4], "cannot be read"),
    ],
)
def test_a_bad_index_says_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_index(path, PilotConfig())
    assert "plan --save-index" in caught.value.remedy


def test_what_is_loaded_is_left_out_of_collections() -> None:
    before = gc.get_threshold()
    try:
        _leave_to_itself()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == GC_THRESHOLD
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_the_curl_line_survives_a_quote_in_the_model_name() -> None:
    url, body = request_of(curl_line("http://127.0.0.1:8765", "it's a model"))
    assert url == "http://127.0.0.1:8765/v1/chat/completions"
    assert json.loads(body)["model"] == "it's a model"
    assert len(json.loads(body)["context_blocks"]) == 2


def test_the_ready_text_names_address_engine_and_mode() -> None:
    text = ready_text("http://127.0.0.1:1", "http://engine", "off", "m")
    assert "http://127.0.0.1:1/v1" in text and "http://engine" in text and "off" in text
