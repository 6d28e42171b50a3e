"""The examination: what an engine says of itself, how it renders a conversation, and, if asked for, what it reuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from prefixpilot.engines.doctor import findings, probe, template
from prefixpilot.engines.doctor.facts import PATHS, Answer, Facts, identity, read_facts
from prefixpilot.engines.doctor.findings import Finding
from prefixpilot.providers.limits import builtin_limits

SAMPLES: Final = 4
"""Times that ``/metrics`` is asked for, to see whether one process answers."""


TOO_LONG: Final = (400, 413, 422)
"""With which engines answer a prompt that does not fit their window, among others."""


class Asks(Protocol):
    """Asks an engine: :class:`~prefixpilot.engines.doctor.client.Client`. Raises nothing; status 0 is no answer."""

    host: str

    def get(self, path: str) -> Answer: ...
    def post(self, path: str, body: Mapping[str, Any]) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        url: of the engine.
        facts: what it says of itself.
        findings: one a check; those of the probe, if there was one, in the place of those that it settles.
        steps: what the probe sent, and what came of it.
    """

    url: str
    facts: Facts
    findings: tuple[Finding, ...]
    steps: tuple[probe.Step, ...] = ()

    @property
    def sound(self) -> bool:
        """Nothing has to be mended."""
        return not any(finding.status in ("warn", "fail") for finding in self.findings)


def examine(client: Asks, url: str, model: str | None, mark: str | None, tell: Callable[[str], None]) -> Report:
    """Examine an engine. Never raises: an engine that does not answer is a finding.

    Args:
        model: to ask for; the first that it lists if ``None``.
        mark: stands in front of the probe's prompts; ``None``: none are sent.
        tell: called with what is being done, a few words.
    """
    tell("asking the engine")
    answers = {"/v1/models": client.get("/v1/models")}
    first = answers["/v1/models"]
    if first.status == 0:
        reason = first.body.decode("utf-8", "replace")
        return Report(url, Facts(), (Finding("engine", "fail", f"does not answer ({reason})", "start it first"),))
    provider = builtin_limits().provider(client.host)
    if first.status in (401, 403) and provider is None:
        what = f"refuses the key, or wants one (HTTP {first.status})"
        return Report(url, Facts(), (Finding("engine", "fail", what, "--key-env NAME of the variable that holds it"),))
    if provider is None:
        answers |= {path: client.get(path) for path in PATHS if path not in answers}
    facts = read_facts(answers)
    name = model or (facts.models[0] if facts.models else None)
    sent = None if mark is None else run_probe(client, facts, name, mark, tell)
    steps = () if sent is None else sent.steps
    probed = () if sent is None else probe.judge(sent)
    known = provider is not None or facts.engine != "unknown" or findings.lists_models(first)
    if not known and not any(step.counts.error is None for step in steps):
        return Report(url, facts, (findings.no_api(first), *probed), steps)
    found = [*_said(client, facts, provider, name, tell)]
    return Report(url, facts, _settled(found, probed), steps)


def _said(
    client: Asks, facts: Facts, provider: str | None, model: str | None, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """What can be known without asking the model for anything."""
    limits = None if provider is None else builtin_limits().of(provider, model or "")
    if provider is not None and limits is not None:
        yield from findings.of_provider(provider, limits)
        yield Finding("cached_tokens", "unknown", "only an answer tells", "run again with --probe")
        return
    if facts.engine == "prefixpilot":
        yield findings.of_facts(facts)[0]
        return
    yield from findings.of_facts(facts)
    tell("rendering a conversation")
    yield template.judge(*rendered(client, facts, model))
    tell("looking for replicas")
    yield findings.of_replicas(facts, [identity(client.get("/metrics")) for _ in range(SAMPLES)])


def _settled(said: Sequence[Finding], probed: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of both; of one check that of the probe, which has seen it. What only a probe tells is not asked for."""
    seen = {finding.check for finding in probed}
    turn_seen = any(finding.check == "turns" for finding in probed)
    kept = (
        finding
        for finding in said
        if finding.check not in seen
        and not (turn_seen and finding.check == template.NAME and finding.status == "unknown")
    )
    return (*kept, *probed)


Renderings = tuple[list[template.Rendering | None], list[template.Rendering | None]]


def rendered(client: Asks, facts: Facts, model: str | None) -> Renderings:
    """The turns of a conversation as the engine renders them, closed and open. ``None`` where it does not."""
    path = "/apply-template" if facts.engine == "llama.cpp" else "/tokenize"
    closed: list[template.Rendering | None] = []
    opened: list[template.Rendering | None] = []
    for turn in template.turns():
        for open_, into in ((False, closed), (True, opened)):
            body: dict[str, Any] = {"messages": turn.messages, "add_generation_prompt": open_}
            into.append(_rendering(client.post(path, body if model is None else {**body, "model": model})))
        if opened[-1] is None:
            return closed, [None, None]
    return closed, opened


def _rendering(answer: Answer) -> template.Rendering | None:
    document = answer.object()
    prompt, tokens = document.get("prompt"), document.get("tokens")
    if isinstance(prompt, str):
        return prompt
    return tokens if isinstance(tokens, list) and tokens and all(isinstance(each, int) for each in tokens) else None


def run_probe(client: Asks, facts: Facts, model: str | None, mark: str, tell: Callable[[str], None]) -> probe.Probed:
    """Send the prompts one after another; ends with the first that gets no answer. Shorter ones, where the engine's
    window is small, or it does not take the first."""
    lines = probe.lines_that_fit(facts.window_tokens)
    while lines:
        steps = tuple(_steps(client, model, mark, lines, tell))
        if lines == 1 or not (len(steps) == 1 and steps[0].counts.refused):
            return probe.Probed(steps, lines, facts.window_tokens, facts.page_tokens)
        lines, mark = max(lines // 3, 1), f"{mark}, shorter"
    return probe.Probed((), 0, facts.window_tokens, facts.page_tokens)


def _steps(client: Asks, model: str | None, mark: str, lines: int, tell: Callable[[str], None]) -> Iterator[probe.Step]:
    documents = probe.documents(lines)
    user = [{"role": "user", "content": probe.question(mark, documents)}]
    other = [{"role": "user", "content": probe.question(mark, documents[::-1])}]
    for name, messages in (("A", user), ("A again", user), ("A in another order", other)):
        tell(f"probe: {name}")
        step = probe.Step(name, _asked(client, model, messages))
        yield step
        if step.counts.error is not None:
            return
    talk = [{"role": "user", "content": probe.question(f"{mark}, talk", documents[:4])}]
    tell("probe: turn 1")
    first = _asked(client, model, talk)
    yield probe.Step("turn 1", first)
    if first.error is not None:
        return
    tell("probe: turn 2")
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And the fourth?"}]
    yield probe.Step("turn 2", _asked(client, model, talk))


def _asked(client: Asks, model: str | None, messages: Sequence[dict[str, str]]) -> probe.Counts:
    body = probe.body(model, messages)
    answer = client.post("/v1/chat/completions", body)
    if answer.status == 400 and b"max_completion_tokens" in answer.body:
        del body["max_tokens"], body["temperature"]
        answer = client.post("/v1/chat/completions", {**body, "max_completion_tokens": 16})
    if not answer.ok:
        said = answer.body[:200].decode("utf-8", "replace")
        error = f"HTTP {answer.status}: {said}" if answer.status else f"no answer ({said})"
        return probe.Counts(error=error, refused=answer.status in TOO_LONG)
    return probe.read_counts(answer.object())
