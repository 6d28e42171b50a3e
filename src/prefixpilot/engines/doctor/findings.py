"""What the facts of an engine mean for its prefix cache, and what mends it. Pure.

Flags are those of the engines: vLLM 0.32, SGLang 0.5, llama.cpp of October 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prefixpilot.engines.doctor.facts import Answer, Facts
from prefixpilot.providers.limits import CacheLimits

Status = Literal["ok", "warn", "fail", "unknown"]

_ZMQ: Final = (
    '"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\''
)
_EVENTS_VLLM: Final = f'--kv-events-config \'{{"enable_kv_cache_events": true, {_ZMQ}'
_EVENTS_SGLANG: Final = f"--kv-events-config '{{{_ZMQ}"
_COARSE_PAGE: Final = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: its name, fixed.
        what: what was found, one sentence.
        fix: what mends it; ``None`` where nothing has to be.
    """

    check: str
    status: Status
    what: str
    fix: str | None = None


def of_facts(facts: Facts) -> tuple[Finding, ...]:
    """Findings on what an engine says of itself."""
    return (_engine(facts), _caching(facts), _page(facts), _capacity(facts), _events(facts), _cached(facts))


def lists_models(models: Answer) -> bool:
    """``GET /v1/models`` is answered as the API says."""
    return isinstance(models.object().get("data"), list)


def no_api(models: Answer) -> Finding:
    """Nothing here is known, and ``GET /v1/models`` is not answered as the API says: a web page, another service."""
    kind = models.headers.get("content-type", "no content type").partition(";")[0]
    what = (
        f"no OpenAI-compatible engine: GET /v1/models is answered by HTTP {models.status} ({kind}), no list of models"
    )
    fix = "give the engine's base URL; if it has a chat API and no list, run again with --probe --model NAME"
    return Finding("engine", "fail", what, fix)


def _engine(facts: Facts) -> Finding:
    models = f"; models: {', '.join(facts.models[:5])}" if facts.models else ""
    if facts.engine == "prefixpilot":
        return Finding(
            "engine", "warn", f"this is the proxy, before {facts.behind}{models}", f"prefixpilot doctor {facts.behind}"
        )
    if facts.engine == "unknown":
        return Finding("engine", "unknown", f"none that is known by its paths{models}")
    version = "" if facts.version is None else f" {facts.version}"
    window = "" if facts.window_tokens is None else f"; window {facts.window_tokens:,} tokens"
    return Finding("engine", "ok", f"{facts.engine}{version}{models}{window}")


def _caching(facts: Facts) -> Finding:
    name = "prefix caching"
    if facts.engine == "llama.cpp":
        return Finding(name, "ok", "each slot keeps its last prompt (unless a request says cache_prompt: false)")
    if facts.prefix_caching is None:
        return Finding(name, "unknown", "the engine does not say", "run again with --probe")
    if facts.prefix_caching:
        return Finding(name, "ok", "is on")
    fix = "start vLLM with --enable-prefix-caching" if facts.engine == "vllm" else "start without --disable-radix-cache"
    return Finding(name, "fail", "is off: no prompt reuses anything", fix)


def _page(facts: Facts) -> Finding:
    if facts.page_tokens is None:
        return Finding("page size", "unknown", "the engine does not say")
    if facts.page_tokens == 1:
        return Finding("page size", "ok", "a prefix is reused to the token")
    what = f"only whole pages of {facts.page_tokens} tokens are reused"
    if facts.page_tokens <= _COARSE_PAGE:
        return Finding("page size", "ok", what)
    flag = "--block-size" if facts.engine == "vllm" else "--page-size"
    fix = f"a smaller {flag}, if the model allows it; and prefixpilot serve --ordinary-min-region-tokens"
    return Finding("page size", "warn", f"{what}: shorter documents gain nothing", f"{fix} {facts.page_tokens}")


def _capacity(facts: Facts) -> Finding:
    if facts.slots is not None:
        return _slots(facts)
    if facts.capacity_tokens is None:
        return Finding("capacity", "unknown", "the engine does not say how many tokens its KV cache holds")
    own = " (vLLM keeps one page to itself)" if facts.engine == "vllm" else ""
    what = f"the KV cache holds {facts.capacity_tokens:,} tokens{own}"
    if facts.window_tokens is not None and facts.capacity_tokens < 2 * facts.window_tokens:
        memory = "--gpu-memory-utilization" if facts.engine == "vllm" else "--mem-fraction-static"
        return Finding(
            "capacity", "warn", f"{what}, fewer than two windows: prompts evict each other", f"more {memory}"
        )
    return Finding("capacity", "ok", what, f"prefixpilot serve --cache-tokens {facts.capacity_tokens}")


def _slots(facts: Facts) -> Finding:
    held = "" if facts.capacity_tokens is None else f", {facts.capacity_tokens:,} tokens in all"
    what = f"{facts.slots} slots, each of one prompt{held}; the host-RAM store (--cache-ram) keeps earlier ones"
    if facts.slots == 1:
        fix = "--parallel 4: conversations keep a slot of their own"
        return Finding("capacity", "warn", what.replace("slots, each of", "slot of"), fix)
    if facts.shows_slots is False:
        return Finding(
            "capacity", "ok", f"{what}; GET /slots is off", "start without --no-slots, so that they can be looked at"
        )
    return Finding("capacity", "ok", what)


def _events(facts: Facts) -> Finding:
    name = "KV events"
    if facts.engine == "llama.cpp":
        return Finding(name, "ok", "llama.cpp has none; the proxy follows its slots by what answers report")
    if facts.engine not in ("vllm", "sglang"):
        return Finding(name, "unknown", "the engine does not say")
    remedy = _EVENTS_VLLM if facts.engine == "vllm" else _EVENTS_SGLANG
    if not facts.events:
        off = "are off" if facts.events is not None else "are off, or this version does not say"
        if facts.publisher is not None:
            off = f"are not published (publisher {facts.publisher})"
        return Finding(name, "warn", f"{off}: the proxy guesses what is evicted", remedy)
    published = f"are published at {', '.join(facts.events)}"
    if facts.replays:
        return Finding(name, "ok", published, f"prefixpilot serve {_follow(facts)}")
    lost = "no replay_endpoint: what the proxy misses, and what was cached before it started, stays unknown"
    return Finding(name, "warn", f"{published}, but there is {lost}", remedy)


def _follow(facts: Facts) -> str:
    """Options with which the proxy follows the events. vLLM lists its endpoints itself; SGLang counts ranks by port."""
    if facts.engine == "vllm":
        return "--cache-events auto"
    ranks = "" if facts.replicas in (None, 1) else f" --cache-ranks {facts.replicas}"
    return f'--cache-events "{",".join(facts.events or ())}" --cache-replay "{",".join(facts.replays)}"{ranks}'


def _cached(facts: Facts) -> Finding:
    name = "cached_tokens"
    if facts.reports_cached:
        return Finding(name, "ok", "answers say how many tokens were reused")
    if facts.reports_cached is False:
        fix = "start SGLang with --enable-cache-report"
        return Finding(name, "fail", "answers do not say how many tokens were reused", fix)
    return Finding(name, "unknown", "only an answer tells", "run again with --probe")


def of_replicas(facts: Facts, identities: Sequence[tuple[str, ...]]) -> Finding:
    """Whether one process answered each time, by what ``/metrics`` says of it."""
    name = "replicas"
    several = "several caches behind one URL: equal prompts hit only if they meet the same one"
    fix = "a router that keeps a conversation on one of them (sgl-router --policy cache_aware), or one proxy for each"
    if len(set(identities)) > 1:
        return Finding(name, "warn", several, fix)
    if facts.replicas is not None and facts.replicas > 1:
        return Finding(name, "warn", f"{facts.replicas} data-parallel ranks: {several}", fix)
    if not identities or not identities[0]:
        return Finding(name, "unknown", "nothing tells one process from another")
    return Finding(name, "ok", f"one process answered {len(identities)} times of {len(identities)}")


def of_provider(provider: str, limits: CacheLimits) -> tuple[Finding, ...]:
    """What a hosted provider publishes of its cache."""
    return tuple(_published(provider, limits))


def _published(provider: str, limits: CacheLimits) -> Iterator[Finding]:
    source = f"{limits.source}, read {limits.date}"
    yield Finding("engine", "ok", f"hosted: {provider}; figures from {source}")
    least = limits.minimum_tokens
    yield Finding("prefix caching", "ok", "on" if least is None else f"prefixes of {least:,} tokens or more are cached")
    step = limits.increment_tokens
    yield Finding("page size", "ok" if step else "unknown", f"multiples of {step} tokens" if step else "not published")
    life = limits.lifetime()
    if life is None:
        yield Finding("capacity", "unknown", "how long a prefix is kept is not published")
    else:
        yield Finding("capacity", "ok", f"a prefix is kept {_span(life.at_least, life.at_most)} after its last use")
    if limits.max_breakpoints is not None and provider == "anthropic":
        fix = "prefixpilot serve --providers-cache-marks, unless the client sets cache_control itself"
        yield Finding("cache marks", "ok", f"only up to one of {limits.max_breakpoints} marks is cached", fix)


def _span(least: float, most: float) -> str:
    short, long = f"{least / 60:g}", f"{most / 60:g} min"
    return long if least == most else f"{short} to {long}"
