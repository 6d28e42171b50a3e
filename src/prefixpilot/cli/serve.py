"""``prefixpilot serve``: the proxy before a running engine, or before the embedded one.

The proxy runs in a thread of its own; the main thread starts the engine, says when both are ready, watches them, and
takes the signals. SIGINT, SIGTERM and SIGHUP all end the command alike: drain the proxy, stop the engine, status 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import json
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.cli.ready import ready_text
from prefixpilot.cli.serve_settings import EMBEDDED, EmbeddedSettings, ServeSettings, add_settings, read_settings
from prefixpilot.errors import ConfigError, EngineError, InvalidInputError
from prefixpilot.proxy.configuration import as_toml

if TYPE_CHECKING:
    from prefixpilot.engines.llamacpp import EmbeddedEngine
    from prefixpilot.proxy import ProxySettings, RunningProxy

LOOPBACK = ("127.0.0.1", "::1", "localhost")
POLL_S = 0.5
GC_THRESHOLD = 10_000
MAX_SNAPSHOT_BYTES = 1 << 30

DESCRIPTION = """\
Put the proxy before an engine that speaks the OpenAI or the Anthropic API. Requests are planned so that the engine's
KV prefix cache hits: those that carry `context_blocks`, and ordinary ones in which documents are recognised. All else
passes through as it came.

The URL and a curl line that works as pasted are printed once the engine answers. Ctrl-C or SIGTERM ends it.
"""

EXAMPLES = """\
examples:
  prefixpilot serve --engine embedded
      nothing else needed: llama.cpp and SmolLM2-135M, started and stopped with the proxy

  vllm serve MODEL --enable-prefix-caching --enable-prompt-tokens-details
  prefixpilot serve --engine http://127.0.0.1:8000
      vLLM; without --enable-prompt-tokens-details it does not say how many tokens it reused

  python -m sglang.launch_server --model-path MODEL --enable-cache-report
  prefixpilot serve --engine http://127.0.0.1:30000
      SGLang; --enable-cache-report makes it say how many tokens it reused

  llama-server -m MODEL.gguf
  prefixpilot serve --engine http://127.0.0.1:8080
      llama.cpp

  prefixpilot serve --engine https://HOST/v1
      a cloud API; send your key to the proxy as you send it to them: it is passed on and not stored

  prefixpilot serve --engine http://10.0.0.1:8000 --engine http://10.0.0.2:8000
      several engines of one model: each request goes where most of its prompt is cached (--routing)

  prefixpilot serve --engine http://127.0.0.1:8000 --store redis://127.0.0.1:6379/0
      conversations in Redis or Valkey, shared by all proxies that name it

  prefixpilot plan batch.jsonl --save-index index.json.gz -o planned.jsonl
  prefixpilot serve --engine http://127.0.0.1:8000 --index index.json.gz
      start with the index of a batch that the engine has just run

  prefixpilot serve --config prefixpilot.toml --print-config
      all settings, and where each was set: flags go before the environment (PREFIXPILOT_PORT, PREFIXPILOT_ADMIN_TOKEN),
      that before the file, that before the defaults

then:
  point the client's base URL at http://127.0.0.1:8765/v1 and add `context_blocks` to the body, a list of strings or of
  {"text", "id", "title"}. Headers: X-PrefixPilot-Conversation: ID (documents of earlier turns are not sent twice),
  X-PrefixPilot-Mode: on|off|shadow|explain, X-PrefixPilot-Max-Displacement: N.
  GET /healthz, /readyz, /metrics, /stats, /openapi.json.

exit status: 0 ended by a signal, 1 the engine failed, 2 bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``serve``."""
    parser = subparsers.add_parser(
        "serve",
        help="run the proxy before an engine",
        usage="prefixpilot serve --engine URL|embedded [--engine URL ...] [--config FILE] [--SETTING VALUE ...]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force, as a file for --config, and end"
    )
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes. Returns the exit status.

    Raises:
        InvalidInputError, MissingExtraError: before anything is started.
    """
    loaded = read_settings(args)
    for warning in (*loaded.warnings, *_open_doors(loaded.settings)):
        print(f"prefixpilot serve: {warning}", file=sys.stderr)
    if args.print_config:
        print(as_toml(loaded), end="")
        return 0
    try:
        with _signals_interrupt():
            _serve(loaded.settings)
    except (_SignalledError, KeyboardInterrupt):
        return 0
    except EngineError as error:
        print(f"prefixpilot serve: {error}", file=sys.stderr)
        return 1
    return 0


class _SignalledError(BaseException):
    """A signal asks for the end. No KeyboardInterrupt: CPython remembers one that goes through ``exec`` (as imports of
    dataclasses do), and then ends by SIGINT although it was caught."""


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Within it the first SIGINT, SIGTERM or SIGHUP raises _SignalledError; later ones do not disturb the way out."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise _SignalledError

    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _open_doors(serving: ServeSettings) -> Iterator[str]:
    """What others on the network may do."""
    if serving.admin.token is None and serving.host not in LOOPBACK:
        yield f"{serving.host} is open to others, and without admin.token so are /reset, /evict, /stats and /metrics"


def _serve(serving: ServeSettings) -> None:
    from prefixpilot.proxy import serve_in_thread
    from prefixpilot.proxy.logs import BackgroundHandler, configure_logs

    pilot = ContextPilot(serving.pilot) if serving.index is None else load_index(Path(serving.index), serving.pilot)
    _check_port_is_free(serving.host, serving.port)
    with contextlib.ExitStack() as stack:
        handler = stack.enter_context(contextlib.closing(BackgroundHandler(sys.stderr)))
        configure_logs(serving.log, handler, others=True)
        engine = None
        if serving.engine == EMBEDDED:
            print("starting the embedded engine ...", file=sys.stderr, flush=True)
            engine = stack.enter_context(_embedded_engine(serving.embedded, serving.store.directory))
        settings = serving.proxy(serving.engine if engine is None else engine.base_url)
        if settings.tracing.enabled:
            from prefixpilot.proxy.tracing import exporting

            stack.enter_context(exporting())
        server = stack.enter_context(serve_in_thread(settings, pilot=pilot))
        _announce_when_ready(server, settings, engine)
        _leave_to_itself()
        _watch(server, engine)


def _embedded_engine(settings: EmbeddedSettings, state: Path | None) -> EmbeddedEngine:
    """Its slots outlive it where conversations do."""
    from prefixpilot.engines.llamacpp import CONTEXT_TOKENS, MAX_SLOT_BYTES, EmbeddedEngine
    from prefixpilot.engines.models import resolve_model

    context = CONTEXT_TOKENS if settings.context is None else settings.context
    model = resolve_model(None if settings.model is None else Path(settings.model))
    most = MAX_SLOT_BYTES if settings.max_slot_bytes is None else settings.max_slot_bytes
    slots = state / "slots" if state is not None and most else None
    return EmbeddedEngine(
        model, context_tokens=context, threads=settings.threads, slot_directory=slots, max_slot_bytes=most
    )


def load_index(path: Path, config: PilotConfig) -> ContextPilot:
    """A pilot that starts with the snapshot in ``path``, JSON or gzipped JSON.

    Raises:
        ConfigError: no such file, not readable, larger than 1 GiB, not JSON, or not a snapshot.
    """
    remedy = "give a file made by `prefixpilot plan --save-index`"
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_SNAPSHOT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError("--index", f"{path} cannot be read ({reason})", remedy) from None
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise ConfigError("--index", f"{path} holds more than 1 GiB", remedy)
    try:
        snapshot = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError("--index", f"{path} is not JSON ({error})", remedy) from None
    if not isinstance(snapshot, dict):
        raise ConfigError("--index", f"{path} holds no JSON object", remedy)
    pilot = ContextPilot(config)
    try:
        pilot.restore(snapshot)
    except InvalidInputError as error:
        raise ConfigError("--index", f"{path} is not a snapshot ({error.field}: {error.reason})", remedy) from None
    return pilot


def _check_port_is_free(host: str, port: int) -> None:
    """Fail before the engine is started, which takes seconds."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise ConfigError("--host", f"{host!r} is no address ({error.strerror})", "use 127.0.0.1") from None
    except OSError as error:
        remedy = f"end what listens there, or choose another port: --port {port + 1 if port < 65535 else 8765}"
        raise ConfigError("--port", f"{host}:{port} cannot be bound ({error.strerror})", remedy) from None


def _announce_when_ready(server: RunningProxy, settings: ProxySettings, engine: EmbeddedEngine | None) -> None:
    """Return once the engine answers. Says so if that takes time; a signal ends the wait."""
    told = False
    while (missing := server.missing()) is not None:
        if engine is not None and not engine.running:
            raise _engine_ended(engine)
        if not told:
            waited_for = " or ".join(settings.all_engines)
            waiting = f"listening on {server.url}, waiting for the engine {waited_for}: {missing[:300]}"
            print(waiting, file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL_S)
    where = ", ".join(settings.all_engines) if engine is None else f"embedded llama.cpp on {engine.base_url}"
    model = server.first_model() or "MODEL" if engine is None else engine.model.stem
    print(ready_text(server.url, where, settings.mode, model), flush=True)


def _leave_to_itself() -> None:
    """What has been loaded by now stays until the end: the garbage collector need not look at it again and again, nor
    after every 700 objects, of which a request makes more. The process is ours."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _watch(server: RunningProxy, engine: EmbeddedEngine | None) -> None:
    """Wait for a signal (_SignalledError), or for either of the two to end on its own (EngineError)."""
    while True:
        time.sleep(POLL_S)
        if engine is not None and not engine.running:
            raise _engine_ended(engine)
        if not server.running:
            raise EngineError("the proxy ended on its own; its log says why")


def _engine_ended(engine: EmbeddedEngine) -> EngineError:
    lines = "\n".join(f"  {line}" for line in engine.log_tail())
    return EngineError(f"the embedded engine ended on its own; its last log lines:\n{lines}")
