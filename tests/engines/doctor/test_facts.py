"""What is read of an engine's own documents, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.engines.doctor.facts import PATHS, Answer, Facts, identity, read_facts
from prefixpilot.engines.doctor.findings import Finding, of_facts, of_provider, of_replicas
from prefixpilot.providers.limits import builtin_limits

from .canned import SGLANG, VLLM, answer, llamacpp, vllm_metrics


def facts_of(paths: Mapping[str, Answer | Sequence[Answer]], **others: Answer) -> Facts:
    plain = {path: each for path, each in paths.items() if isinstance(each, Answer)}
    return read_facts({**plain, **{f"/{name}": each for name, each in others.items()}})


NULL = answer({"0": {"enable_kv_cache_events": True, "publisher": "null", "endpoint": "tcp://*:5557"}})
NO_REPLAY = answer({"0": {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None}})


def finding(facts: Facts, check: str) -> Finding:
    return next(each for each in of_facts(facts) if each.check == check)


def test_vllm() -> None:
    assert facts_of(VLLM) == Facts(
        "vllm",
        "0.32.0",
        ("m/one",),
        8192,
        True,
        16,
        319_984,
        ("tcp://*:5557",),
        replicas=1,
        replays=("tcp://*:5558",),
    )
    assert {each.status for each in of_facts(facts_of(VLLM))} == {"ok", "unknown"}


def test_sglang() -> None:
    assert facts_of(SGLANG) == Facts("sglang", "0.5.23", ("m/two",), 32768, True, 1, 400_000, (), False, 1)


def test_llamacpp() -> None:
    assert facts_of(llamacpp()) == Facts(
        "llama.cpp", None, ("tiny",), 4096, None, 1, 16_384, (), True, slots=4, shows_slots=True
    )


def test_llamacpp_that_hides_its_properties_is_known_by_its_header() -> None:
    facts = facts_of({"/v1/models": answer({"data": []}, server="llama.cpp")})
    assert (facts.engine, facts.slots) == ("llama.cpp", None)


def test_our_own_proxy_names_the_engine_behind_it() -> None:
    facts = facts_of(VLLM, readyz=answer({"ready": True, "engine": "http://e:8000"}))
    assert (facts.engine, facts.behind) == ("prefixpilot", "http://e:8000")
    assert finding(facts, "engine").fix == "prefixpilot doctor http://e:8000"


def test_another_api() -> None:
    facts = facts_of({"/v1/models": answer({"data": [{"id": "gpt"}]})})
    assert facts == Facts(models=("gpt",))
    assert {each.status for each in of_facts(facts)} == {"unknown"}


@pytest.mark.parametrize(
    ("facts", "check", "status", "fix"),
    [
        (facts_of(VLLM, metrics=vllm_metrics("False")), "prefix caching", "fail", "--enable-prefix-caching"),
        (facts_of(VLLM, metrics=vllm_metrics(page=512)), "page size", "warn", "--block-size"),
        (facts_of(VLLM, metrics=vllm_metrics(pages=900)), "capacity", "warn", "--gpu-memory-utilization"),
        (facts_of(VLLM), "capacity", "ok", "--cache-tokens 319984"),
        (facts_of(VLLM), "KV events", "ok", "prefixpilot serve --cache-events auto"),
        (facts_of(VLLM, kv_event_sources=NO_REPLAY), "KV events", "warn", '"replay_endpoint": "tcp://*:5558"'),
        (facts_of(VLLM, kv_event_sources=NULL), "KV events", "warn", '"publisher": "zmq"'),
        (facts_of(VLLM, kv_event_sources=answer({})), "KV events", "warn", "--kv-events-config"),
        (facts_of(VLLM, kv_event_sources=Answer(404, {}, b"")), "KV events", "warn", "enable_kv_cache_events"),
        (facts_of(SGLANG), "cached_tokens", "fail", "--enable-cache-report"),
        (facts_of(SGLANG), "KV events", "warn", '"topic": "kv-events", "endpoint": "tcp://*:5557", "replay_endpoint"'),
        (replace(facts_of(SGLANG), events=("tcp://*:5",)), "KV events", "warn", '"replay_endpoint"'),
        (
            replace(facts_of(SGLANG), events=("tcp://*:5",), replays=("tcp://*:7",), replicas=2),
            "KV events",
            "ok",
            'serve --cache-events "tcp://*:5" --cache-replay "tcp://*:7" --cache-ranks 2',
        ),
        (replace(facts_of(SGLANG), prefix_caching=False), "prefix caching", "fail", "--disable-radix-cache"),
        (facts_of(llamacpp(1)), "capacity", "warn", "--parallel"),
        (facts_of(llamacpp(4, False)), "capacity", "ok", "--no-slots"),
    ],
)
def test_what_has_to_be_mended_comes_with_the_flag(facts: Facts, check: str, status: str, fix: str) -> None:
    found = finding(facts, check)
    assert found.status == status
    assert found.fix is not None and fix in found.fix


def test_sglangs_events_and_capacity_where_they_stand_elsewhere() -> None:
    info = {
        "disable_radix_cache": True,
        "kv_events_config": '{"publisher": "zmq", "endpoint": "tcp://*:9"}',
        "internal_states": [{"memory_usage": {"token_capacity": 77}}],
    }
    facts = facts_of({"/server_info": answer(info)})
    assert (facts.events, facts.capacity_tokens, facts.prefix_caching) == (("tcp://*:9",), 77, False)
    assert facts.reports_cached is None


@pytest.mark.parametrize(
    ("config", "events", "replays", "publisher"),
    [
        ('{"publisher": "zmq", "replay_endpoint": "tcp://*:1"}', ("tcp://*:5557",), ("tcp://*:1",), None),
        ('{"endpoint": "tcp://*:9"}', (), (), "null"),
        ("{", (), (), None),
        (None, (), (), None),
    ],
)
def test_sglangs_events(
    config: str | None, events: tuple[str, ...], replays: tuple[str, ...], publisher: str | None
) -> None:
    facts = facts_of({"/server_info": answer({"disable_radix_cache": False, "kv_events_config": config})})
    assert (facts.events, facts.replays, facts.publisher) == (events, replays, publisher)


def test_a_publisher_that_publishes_nothing_is_named() -> None:
    facts = facts_of(VLLM, kv_event_sources=NULL)
    assert (facts.events, facts.publisher) == ((), "null")
    assert "publisher null" in finding(facts, "KV events").what
    made = {"enable_kv_cache_events": False, "publisher": "zmq", "endpoint": "tcp://*:5557"}
    assert facts_of(VLLM, kv_event_sources=answer({"0": made})).events == ()


def test_one_rank_without_a_replay_is_one_too_many() -> None:
    two = {"0": {"endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:2"}, "1": {"endpoint": "tcp://*:3"}}
    facts = facts_of(VLLM, kv_event_sources=answer(two))
    assert (facts.events, facts.replays) == (("tcp://*:1", "tcp://*:3"), ())
    assert finding(facts, "KV events").status == "warn"


def test_one_process_several_and_no_telling() -> None:
    one, other = identity(vllm_metrics(started=1.0)), identity(vllm_metrics(started=2.0))
    assert one and one != other
    facts = facts_of(VLLM)
    assert of_replicas(facts, [one, one]).status == "ok"
    assert of_replicas(facts, [one, other, one]).status == "warn"
    assert of_replicas(facts, [(), ()]).status == "unknown"
    assert of_replicas(replace(facts, replicas=2), [one, one]).status == "warn"
    assert identity(Answer(404, {}, b"")) == ()


@pytest.mark.parametrize("provider", ["anthropic", "openai", "gemini", "deepseek"])
def test_providers_that_publish_their_rules(provider: str) -> None:
    limits = builtin_limits().of(provider, "some-model")
    assert limits is not None
    found = {each.check: each for each in of_provider(provider, limits)}
    assert limits.source in found["engine"].what
    assert ("cache marks" in found) is (provider == "anthropic")
    assert found["capacity"].status == ("unknown" if limits.lifetime() is None else "ok")


_KEYS = ["data", "id", "total_slots", "disable_radix_cache", "page_size", "engine", "ready", "meta", "0", "endpoint"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(PATHS), JSON.map(answer) | st.binary().map(lambda b: Answer(200, {}, b))))
def test_whatever_an_engine_answers_is_read(answers: dict[str, Answer]) -> None:
    facts = read_facts(answers)
    assert {each.check for each in of_facts(facts)} >= {"engine", "prefix caching", "page size", "capacity"}
