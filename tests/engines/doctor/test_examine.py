"""The whole examination: of engines written down, of a simulated one, and of llama.cpp itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.engines.doctor import Client, Finding, Report, examine
from prefixpilot.engines.doctor.facts import Answer
from prefixpilot.engines.doctor.probe import Counts, Probed, Step, documents, judge, question, read_counts
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.testing import Respond, SimulatedEngine

from .canned import SGLANG, VLLM, Canned, answer, llamacpp, vllm_metrics

URL = "http://127.0.0.1:1"


def ignore(what: str) -> None:
    pass


def report(client: Canned, mark: str | None = None, model: str | None = None) -> Report:
    return examine(client, URL, model, mark, ignore)


def of(found: Report) -> dict[str, Finding]:
    by_check = {finding.check: finding for finding in found.findings}
    assert len(by_check) == len(found.findings)
    return by_check


def caching_chat(*, reports: bool = True, keeps: bool = True) -> Callable[[Mapping[str, Any]], Answer]:
    """Caches prompts by character; four of them are a token."""
    seen: list[str] = []

    def reply(body: Mapping[str, Any]) -> Answer:
        prompt = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])
        cached = max((_common(prompt, each) for each in seen), default=0) if keeps else 0
        seen.append(prompt)
        usage: dict[str, Any] = {"prompt_tokens": len(prompt) // 4}
        if reports:
            usage["prompt_tokens_details"] = {"cached_tokens": cached // 4}
        return answer({"choices": [{"message": {"content": "door 3"}}], "usage": usage})

    return reply


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def tokenize(body: Mapping[str, Any]) -> Answer:
    text = "".join(f"<{m['role']}>{m['content']}</>" for m in body["messages"])
    return answer({"tokens": [ord(c) for c in text + ("<assistant>" if body["add_generation_prompt"] else "")]})


def test_a_sound_vllm() -> None:
    client = Canned(VLLM, posts={"/tokenize": tokenize}, chat=caching_chat())
    said = of(report(client))
    assert {check: each.status for check, each in said.items()} == {
        "engine": "ok",
        "prefix caching": "ok",
        "page size": "ok",
        "capacity": "ok",
        "KV events": "ok",
        "cached_tokens": "unknown",
        "chat template": "ok",
        "replicas": "ok",
    }
    assert "/v1/chat/completions" not in client.asked
    probed = report(client, "mark")
    assert probed.sound and of(probed)["cached_tokens"].status == "ok"
    assert [step.name for step in probed.steps] == ["A", "A again", "A in another order", "turn 1", "turn 2"]
    again, other = probed.steps[1].counts, probed.steps[2].counts
    assert again.cached_tokens == again.prompt_tokens and (other.cached_tokens or 0) < 20


def test_vllm_without_its_flags() -> None:
    paths = {**VLLM, "/metrics": vllm_metrics("False"), "/kv_event_sources": answer({})}
    found = report(Canned(paths, chat=caching_chat(reports=False)), "mark")
    assert not found.sound
    fixes = {check: each.fix for check, each in of(found).items() if each.status in ("warn", "fail")}
    assert set(fixes) == {"prefix caching", "KV events", "cached_tokens"}
    assert "--enable-prompt-tokens-details" in str(fixes["cached_tokens"])


def test_an_engine_that_reuses_nothing_is_found_out_by_the_probe() -> None:
    client = Canned({"/v1/models": answer({"data": [{"id": "m"}]})}, chat=caching_chat(keeps=False))
    assert report(client).sound
    found = of(report(client, "mark"))
    assert (found["prefix caching"].status, found["turns"].status) == ("fail", "fail")


def test_several_replicas_behind_one_url() -> None:
    paths = {**VLLM, "/metrics": [vllm_metrics(started=1), vllm_metrics(started=1), vllm_metrics(started=2)]}
    assert of(report(Canned(paths)))["replicas"].status == "warn"


def test_sglang_and_llamacpp_without_a_tokenizer() -> None:
    for paths in (SGLANG, llamacpp()):
        assert of(report(Canned(paths)))["chat template"].status == "unknown"


def test_a_hosted_provider_is_asked_for_nothing_that_it_does_not_have() -> None:
    client = Canned({"/v1/models": Answer(401, {}, b"")}, host="api.anthropic.com")
    found = of(report(client, model="claude-opus-4.6"))
    assert "4,096 tokens" in found["prefix caching"].what and "5 min" in found["capacity"].what
    assert client.asked == ["/v1/models"]


def test_a_key_that_is_refused() -> None:
    found = report(Canned({"/v1/models": Answer(401, {}, b"no")}))
    assert not found.sound and "--key-env" in str(found.findings[0].fix)


PAGE = Answer(200, {"content-type": "text/html; charset=utf-8"}, b"<html><title>It works!</title></html>")


@pytest.mark.parametrize("page", [PAGE, Answer(404, {}, b"not found"), answer({"status": "up"}), answer("[]")])
def test_what_is_no_engine_is_told(page: Answer) -> None:
    paths = dict.fromkeys(("/v1/models", "/version", "/metrics", "/props", "/readyz"), page)
    for mark in (None, "mark"):
        found = report(Canned(paths), mark)
        engine = of(found)["engine"]
        assert not found.sound and "no OpenAI-compatible engine" in engine.what and "base URL" in str(engine.fix)
        assert set(of(found)) == {"engine"} | ({"probe"} if mark else set())


def test_an_engine_without_a_list_of_models_is_known_by_its_answers() -> None:
    found = report(Canned({}, chat=caching_chat()), "mark", model="m")
    assert of(found)["engine"].status == "unknown" and of(found)["prefix caching"].status == "ok"
    assert found.sound


def test_newer_models_take_the_bound_under_another_name() -> None:
    inner = caching_chat()

    def chat(body: Mapping[str, Any]) -> Answer:
        if "max_tokens" in body:
            return Answer(400, {}, b'{"error": {"message": "use max_completion_tokens"}}')
        return inner(body)

    assert report(Canned({"/v1/models": answer({"data": []})}, chat=chat), "mark").sound


def test_a_probe_that_fails_says_why_and_stops() -> None:
    client = Canned(VLLM, chat=lambda body: Answer(500, {}, b"out of memory"))
    found = report(client, "mark")
    assert "out of memory" in of(found)["probe"].what and len(found.steps) == 1


def small(window: int, inner: Callable[[Mapping[str, Any]], Answer]) -> Callable[[Mapping[str, Any]], Answer]:
    """An engine that takes no prompts of more than so many tokens, of four characters."""

    def reply(body: Mapping[str, Any]) -> Answer:
        if sum(len(m["content"]) for m in body["messages"]) // 4 > window:
            return Answer(400, {}, b'{"error": {"message": "longer than the context"}}')
        return inner(body)

    return reply


def models(window: int | None) -> Answer:
    return answer({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": window}]})


@pytest.mark.parametrize(("told", "lines"), [(512, 1), (1024, 2), (None, 1)])
def test_a_small_window_gets_a_shorter_probe_and_is_told_so(told: int | None, lines: int) -> None:
    """Whether the engine says how small it is, or only refuses what is too long."""
    client = Canned({**VLLM, "/v1/models": models(told)}, chat=small(told or 512, caching_chat()))
    found = report(client, "mark")
    assert of(found)["probe"].status == "ok" and f"documents of {lines} lines" in of(found)["probe"].what
    assert {of(found)[check].status for check in ("prefix caching", "document order", "turns")} == {"ok"}
    assert [step.counts.error for step in found.steps] == [None] * 5


def test_a_window_that_takes_no_probe_is_told_and_asked_for_nothing() -> None:
    client = Canned({**VLLM, "/v1/models": models(128)}, chat=small(128, caching_chat()))
    found = report(client, "mark")
    assert of(found)["probe"].status == "unknown" and "window of 128 tokens" in of(found)["probe"].what
    assert "/v1/chat/completions" not in client.asked


def test_a_prompt_that_is_refused_however_short_it_is_is_a_failure() -> None:
    client = Canned({**VLLM}, chat=small(10, caching_chat()))
    found = report(client, "mark")
    assert of(found)["probe"].status == "fail" and "longer than the context" in of(found)["probe"].what
    assert client.asked.count("/v1/chat/completions") == 3 and not found.sound


def test_what_fills_no_page_is_not_judged() -> None:
    by_page = Probed(
        tuple(Step(name, Counts(300, 0)) for name in ("A", "A again", "A in another order", "turn 1", "turn 2")),
        page_tokens=512,
    )
    found = {finding.check: finding for finding in judge(by_page)}
    assert (found["prefix caching"].status, found["turns"].status) == ("unknown", "unknown")
    assert "no page of 512" in found["turns"].what
    half = by_page._replace(page_tokens=256, steps=tuple(Step(s.name, Counts(300, 256)) for s in by_page.steps))
    assert {finding.status for finding in judge(half)} == {"ok"}


@pytest.mark.parametrize(
    ("document", "counts"),
    [
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}, Counts(9, 0)),
        ({"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}}, Counts(9, 4)),
        ({"usage": {"prompt_tokens": 9}, "timings": {"cache_n": 3}}, Counts(9, 3)),
        ({"usage": {"prompt_tokens": True}, "choices": [None]}, Counts()),
        ({"choices": [{"message": {"content": "hi"}}], "usage": []}, Counts(text="hi")),
    ],
)
def test_counts_of_an_answer(document: dict[str, Any], counts: Counts) -> None:
    assert read_counts(document) == counts


def test_prompts_of_the_probe_differ_from_their_first_words_on() -> None:
    texts = documents()
    assert len({text[:12] for text in texts}) == len(texts) == 8
    assert _common(question("m", texts), question("m", texts[::-1])) < 30
    assert _common(question("m1", texts), question("m2", texts)) < 10


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://", "http://u:p@h", "http://h/?q=1", "http://h:x"])
def test_urls_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(ConfigError):
        Client(url)


def test_the_command_on_a_simulated_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTOR_KEY", "sk-secret")
    with SimulatedEngine() as engine:
        assert main(["doctor", f"{engine.base_url}/v1", "--probe", "--key-env", "DOCTOR_KEY"]) == 0
        shown = capsys.readouterr()
        assert "nothing to mend" in shown.out and "prefix caching" in shown.out
        assert all(request.header("authorization") == "Bearer sk-secret" for request in engine.requests)
        assert main(["doctor", engine.base_url, "--json", "--key-env", "DOCTOR_KEY"]) == 0
        document = json.loads((both := capsys.readouterr()).out)
        assert document["sound"] is True and document["probe"] == []
        assert "sk-secret" not in shown.out + shown.err + both.out + both.err
    assert main(["doctor", engine.base_url]) == 1
    assert "start it first" in capsys.readouterr().out


def test_the_command_on_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nowhere"]) == 2
    assert main(["doctor", URL, "--key-env", "NOT_SET_ANYWHERE"]) == 2
    assert "export NOT_SET_ANYWHERE=KEY" in capsys.readouterr().err


def test_an_engine_that_answers_with_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatedEngine(fault=Respond(503, b"loading")) as engine:
        assert main(["doctor", engine.base_url, "--probe"]) == 1
    assert "HTTP 503: loading" in capsys.readouterr().out


@pytest.mark.engine
def test_llamacpp_itself(tiny_engine: EmbeddedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", tiny_engine.base_url, "--probe", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding["status"] for finding in document["findings"]}
    assert set(found.values()) == {"ok"}
    assert {"chat template", "replicas", "turns", "document order", "capacity"} <= set(found)
    again = document["probe"][1]
    assert again["cached_tokens"] == again["prompt_tokens"] - 1
    with serve_in_thread(ProxySettings(tiny_engine.base_url, port=0)) as proxy:
        assert main(["doctor", proxy.url]) == 1
    assert tiny_engine.base_url in capsys.readouterr().out
