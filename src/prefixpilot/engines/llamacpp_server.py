"""The child of :mod:`prefixpilot.engines.llamacpp`: serves llama.cpp's own HTTP server until its parent goes away.

Run as ``python -m prefixpilot.engines.llamacpp_server SETTINGS`` with SETTINGS a JSON object (:class:`ServerSettings`).

* stdout carries one JSON line: ``{"url": ...}`` once the model is loaded, or ``{"missing": PACKAGE}``.
* stderr carries llama.cpp's log.
* stdin carries nothing. Its end means that the parent is gone, however it went, and ends this process. (The kernel's
  ``PR_SET_PDEATHSIG`` would also fire when only the thread that started us ends, so it is not used.)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MISSING_EXIT = 3
"""Exit status if xllamacpp is not installed."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the child is told.

    Attributes:
        model: path of the GGUF file.
        context_tokens: KV size of one slot, in tokens.
        threads: compute threads.
        parallel: slots, so requests that are computed at the same time.
        cache_ram_mib: bound, in MiB, of the host-RAM store of earlier prompts' KV; 0 turns it off.
        slot_directory: where slots are saved to and restored from; ``None``: nowhere.
    """

    model: str
    context_tokens: int
    threads: int
    parallel: int
    cache_ram_mib: int
    slot_directory: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def exit_with_parent() -> None:
    """End this process when stdin ends. The exit is immediate: llama.cpp holds nothing that must be saved."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def announce(channel: int, message: dict[str, str]) -> None:
    """Write one JSON line to the parent."""
    os.write(channel, json.dumps(message).encode() + b"\n")


def server_params(xllamacpp: Any, settings: ServerSettings) -> Any:
    """llama.cpp's parameters: loopback, a port of the kernel's choice, CPU only."""
    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.model_alias = [Path(settings.model).stem]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = "http://127.0.0.1"  # the default lets every web page read what the slots hold
    params.n_ctx = settings.context_tokens * settings.parallel
    params.n_parallel = settings.parallel
    params.cache_ram_mib = settings.cache_ram_mib
    params.cpuparams.n_threads = settings.threads
    params.cpuparams_batch.n_threads = settings.threads
    params.n_gpu_layers = 0
    params.fit_params = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.use_jinja = True
    if settings.slot_directory is not None:
        params.slot_save_path = f"{settings.slot_directory}{os.sep}"
    return params


def main(argv: list[str]) -> int:
    """Serve until the parent goes away or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides when we stop
    channel = os.dup(1)
    os.dup2(2, 1)  # whatever llama.cpp prints is log
    threading.Thread(target=exit_with_parent, name="exit-with-parent", daemon=True).start()
    settings = ServerSettings(**json.loads(argv[0]))
    try:
        import xllamacpp
    except ImportError as error:
        announce(channel, {"missing": "xllamacpp", "reason": str(error)})
        return MISSING_EXIT
    server = xllamacpp.Server(server_params(xllamacpp, settings))
    announce(channel, {"url": str(server.listening_address)})
    os.close(channel)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
