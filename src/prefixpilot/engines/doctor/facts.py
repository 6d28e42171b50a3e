"""What an engine says of itself, from the documents that it serves. Pure: answers in, facts out.

Absent is ``None``, never a guess. Where each stands:

=========  ==========================================================================================================
vLLM       ``/version``; ``/metrics``: labels of ``vllm:cache_config_info``; ``/kv_event_sources``; ``/v1/models``
SGLang     ``/get_server_info`` (also ``/server_info``): its arguments, and ``max_total_num_tokens``
llama.cpp  header ``Server``; ``/props``; ``/v1/models``: ``meta.n_ctx``
=========  ==========================================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from prefixpilot.engines.llamacpp_slots import SERVER, read_props

Engine = Literal["vllm", "sglang", "llama.cpp", "prefixpilot", "unknown"]

PATHS: Final = (
    "/v1/models",
    "/version",
    "/metrics",
    "/kv_event_sources",
    "/get_server_info",
    "/server_info",
    "/props",
    "/readyz",
)
"""What is asked for. An engine answers those that it has."""

_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Answer(NamedTuple):
    """An HTTP answer; status 0: there was none, and ``body`` says why.

    Attributes:
        headers: names in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """The document; ``None`` if it is none."""
        if not self.ok:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def object(self) -> Mapping[str, Any]:
        """The document, if it is an object; else an empty one."""
        value = self.json()
        return value if isinstance(value, dict) else {}


NO_ANSWER: Final = Answer(0, {}, b"was not asked")
Answers = Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an engine.

    Attributes:
        models: ids that it lists.
        window_tokens: longest prompt and answer together, of the first model.
        prefix_caching: it is on.
        page_tokens: only whole pages are reused.
        capacity_tokens: of the KV cache that prompts can fill, all together; vLLM keeps one of its pages to itself.
        events: where it publishes KV events; empty: it does not; ``None``: unknown.
        replays: where it repeats them on request, as far as it does at each of ``events``; else empty.
        publisher: of events, where it is one that publishes nothing (``null``).
        reports_cached: its answers say how many tokens were cached.
        replicas: data-parallel ranks or workers behind this URL, as far as it says.
        slots: of llama.cpp.
        shows_slots: of llama.cpp, that ``GET /slots`` is answered.
        behind: if this is our own proxy, the engine behind it.
    """

    engine: Engine = "unknown"
    version: str | None = None
    models: tuple[str, ...] = ()
    window_tokens: int | None = None
    prefix_caching: bool | None = None
    page_tokens: int | None = None
    capacity_tokens: int | None = None
    events: tuple[str, ...] | None = None
    reports_cached: bool | None = None
    replicas: int | None = None
    slots: int | None = None
    shows_slots: bool | None = None
    behind: str | None = None
    replays: tuple[str, ...] = ()
    publisher: str | None = None


def read_facts(answers: Answers) -> Facts:
    """Facts from the answers to :data:`PATHS`; any may be missing."""
    models = answers.get("/v1/models", NO_ANSWER)
    listed = [each for each in _list(models.object().get("data")) if isinstance(each, dict)]
    names = tuple(each["id"] for each in listed if isinstance(each.get("id"), str))
    window = _window(listed[0]) if listed else None
    proxy = answers.get("/readyz", NO_ANSWER).object()
    if isinstance(proxy.get("engine"), str) and "ready" in proxy:
        return Facts("prefixpilot", models=names, window_tokens=window, behind=proxy["engine"])
    props = answers.get("/props", NO_ANSWER)
    if (facts := read_props(props.json())) is not None or _server(answers) == SERVER:
        return _llamacpp(names, window, None if facts is None else facts)
    info = _first_object(answers, "/get_server_info", "/server_info")
    if "disable_radix_cache" in info or "mem_fraction_static" in info:
        return _sglang(names, window, info)
    config = cache_config(answers.get("/metrics", NO_ANSWER))
    if config or any(each.get("owned_by") == "vllm" for each in listed):
        return _vllm(names, window, config, answers)
    return Facts(models=names, window_tokens=window)


def _vllm(names: tuple[str, ...], window: int | None, config: Mapping[str, str], answers: Answers) -> Facts:
    page, pages = _number(config.get("block_size")), _number(config.get("num_gpu_blocks"))
    caching = config.get("enable_prefix_caching")
    sources = answers.get("/kv_event_sources", NO_ANSWER)
    rows = [row for row in sources.object().values() if isinstance(row, dict)]
    events, replays, publisher = _published(rows)
    return Facts(
        "vllm",
        _string(answers.get("/version", NO_ANSWER).object().get("version")),
        names,
        window,
        None if caching is None else caching.lower() == "true",
        page,
        None if page is None or pages is None else page * (pages - 1) or None,
        events if sources.ok else None,
        replicas=len(sources.object()) or None,
        replays=replays,
        publisher=publisher,
    )


def _sglang(names: tuple[str, ...], window: int | None, info: Mapping[str, Any]) -> Facts:
    events, replays, publisher = _published(_sglang_events(info.get("kv_events_config")))
    disabled = info.get("disable_radix_cache")
    report = info.get("enable_cache_report")
    return Facts(
        "sglang",
        _string(info.get("version")),
        names,
        window or _number(info.get("context_length")),
        None if disabled is None else disabled is not True,
        _number(info.get("page_size")) or 1,
        _capacity(info),
        events if "kv_events_config" in info else None,
        report if isinstance(report, bool) else None,
        _number(info.get("dp_size")),
        replays=replays,
        publisher=publisher,
    )


def _llamacpp(names: tuple[str, ...], window: int | None, facts: Any) -> Facts:
    if facts is None:
        return Facts("llama.cpp", models=names, window_tokens=window, page_tokens=1, events=(), reports_cached=True)
    context = facts.context_tokens
    return Facts(
        "llama.cpp",
        None,
        names,
        context or window,
        None,
        1,
        None if context is None else context * facts.slots,
        (),
        True,
        slots=facts.slots,
        shows_slots=facts.shows_slots,
    )


def cache_config(metrics: Answer) -> Mapping[str, str]:
    """Labels of ``vllm:cache_config_info``, of the first engine; empty if there are none."""
    if not metrics.ok:
        return {}
    for line in metrics.body.decode("utf-8", "replace").splitlines():
        if line.startswith("vllm:cache_config_info{"):
            return dict(_LABEL.findall(line))
    return {}


def identity(metrics: Answer) -> tuple[str, ...]:
    """What tells the process that answered ``GET /metrics`` from another; empty if nothing does."""
    if not metrics.ok:
        return ()
    lines = metrics.body.decode("utf-8", "replace").splitlines()
    own = [line for line in lines if line.startswith(("process_start_time_seconds", "vllm:cache_config_info{"))]
    started = metrics.headers.get("process-start-time-unix")
    return (*own, *([] if started is None else [started]))


def _server(answers: Answers) -> str:
    named = (answer.headers.get("server", "") for answer in answers.values())
    return next((name.partition("/")[0].strip().lower() for name in named if name), "")


def _window(model: Mapping[str, Any]) -> int | None:
    meta = model.get("meta")
    return _number(model.get("max_model_len")) or _number(meta.get("n_ctx") if isinstance(meta, dict) else None)


Published = tuple[tuple[str, ...], tuple[str, ...], str | None]


def _published(rows: Sequence[Mapping[str, Any]]) -> Published:
    """Endpoints, those of replays if all have one, and the publisher, if there is one that publishes nothing.

    A row is an engine's configuration of one rank.
    """
    named = [row for row in rows if isinstance(row.get("endpoint"), str)]
    quiet = [row for row in named if row.get("publisher", "zmq") != "zmq" or row.get("enable_kv_cache_events") is False]
    if quiet:
        return (), (), str(quiet[0].get("publisher"))
    replays = tuple(each for row in named if isinstance(each := row.get("replay_endpoint"), str))
    return tuple(row["endpoint"] for row in named), replays if len(replays) == len(named) else (), None


def _sglang_events(config: Any) -> list[dict[str, Any]]:
    """``kv_events_config`` is a JSON text, with defaults of its own."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            config = None
    return [{"publisher": "null", "endpoint": "tcp://*:5557", **config}] if isinstance(config, dict) else []


def _capacity(info: Mapping[str, Any]) -> int | None:
    states = [state for state in _list(info.get("internal_states")) if isinstance(state, dict)]
    memory = states[0].get("memory_usage") if states else None
    inner = memory.get("token_capacity") if isinstance(memory, dict) else None
    return _number(info.get("max_total_num_tokens")) or _number(inner)


def _first_object(answers: Answers, *paths: str) -> Mapping[str, Any]:
    found = (answers.get(path, NO_ANSWER).object() for path in paths)
    return next((each for each in found if each), {})


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    """A count of 1 or more, as a number or as digits."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
