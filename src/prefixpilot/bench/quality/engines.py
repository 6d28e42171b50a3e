"""Engines that answer, and that say how likely a given answer is: llama.cpp and vLLM, over HTTP.

What an engine says of the tokens that it draws is the model's own distribution, before any bias. So llama.cpp, which
scores no given text, is made to draw the reference answer, one token a request; all that stands before is cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prefixpilot.bench.quality.base import Bounds, QualityEngine, Scored
from prefixpilot.bench.quality.cases import Messages
from prefixpilot.engines.doctor.client import Client
from prefixpilot.errors import ConfigError, EngineError

TIMEOUT_S: Final = 1800.0
_FORCED: Final = 1e6
"""Added to the logit of the token that is to be drawn."""
_LEAST: Final = -100.0
"""In the place of the logarithm of what a 32-bit float takes for 0."""


class LlamaCpp:
    """llama.cpp's server.

    Args:
        url: without ``/v1``.
        name: for the report.
    """

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._client = Client(url, timeout_s=TIMEOUT_S)

    def measure(self, messages: Messages, reference: str, bounds: Bounds) -> Scored:
        """See :class:`QualityEngine`. One request for each token of the reference."""
        prompt = _told(self._client, "/apply-template", {"messages": list(messages)}, "prompt")
        before = self._tokens(prompt, opening=True)
        wanted = self._tokens(reference, opening=False)[: bounds.reference]
        told = [self._log_probability([*before, *wanted[:i]], token) for i, token in enumerate(wanted)]
        scored = [each for each in told if each is not None]
        if not scored:
            reason = "llama.cpp tells nothing of tokens that end within a character; use --engine transformers"
            raise EngineError(f"no token of the reference {reference!r} can be scored: {reason}")
        body = {"prompt": before, "n_predict": bounds.answer, "temperature": 0, "cache_prompt": True}
        answer: str = _told(self._client, "/completion", body, "content")
        return Scored(answer.strip(), sum(scored), len(scored), len(before))

    def _tokens(self, text: str, *, opening: bool) -> list[int]:
        body = {"content": text, "add_special": opening, "parse_special": opening}
        tokens: list[int] = _told(self._client, "/tokenize", body, "tokens")
        return tokens

    def _log_probability(self, before: Sequence[int], token: int) -> float | None:
        """``None``: it ends within a character, of which the server tells nothing; so it does in every arm."""
        bias = [[token, _FORCED]]
        body = {"prompt": before, "n_predict": 1, "n_probs": 1, "temperature": 0, "logit_bias": bias}
        answered = _asked(self._client, "/completion", body)
        if not answered.get("completion_probabilities"):
            return None
        drawn = answered["completion_probabilities"][0]
        if drawn["id"] != token:
            raise EngineError(f"the engine drew token {drawn['id']} where {token} was forced")
        return max(float(drawn["logprob"]), _LEAST)


class Vllm:
    """vLLM's server.

    Args:
        url: without ``/v1``.
        model: name in the bodies.
    """

    def __init__(self, url: str, model: str) -> None:
        self.name = f"vLLM, {model}"
        self._model = model
        self._client = Client(url, timeout_s=TIMEOUT_S)

    def measure(self, messages: Messages, reference: str, bounds: Bounds) -> Scored:
        """See :class:`QualityEngine`. Two requests, and two for the tokens."""
        before = self._tokens({"messages": list(messages), "add_generation_prompt": True})
        wanted = self._tokens({"prompt": reference, "add_special_tokens": False})[: bounds.reference]
        scored = self._completed([*before, *wanted], 1, prompt_logprobs=0)["prompt_logprobs"][len(before) :]
        total = sum(float(told[str(token)]["logprob"]) for told, token in zip(scored, wanted, strict=True))
        return Scored(self._completed(before, bounds.answer)["text"].strip(), total, len(wanted), len(before))

    def _tokens(self, body: Mapping[str, Any]) -> list[int]:
        tokens: list[int] = _asked(self._client, "/tokenize", {"model": self._model, **body})["tokens"]
        return tokens

    def _completed(self, prompt: Sequence[int], max_tokens: int, **more: Any) -> Mapping[str, Any]:
        body = {"model": self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        choice: Mapping[str, Any] = _asked(self._client, "/v1/completions", body)["choices"][0]
        return choice


@contextmanager
def opened(engine: str, model: Path | None) -> Iterator[QualityEngine]:
    """The engine of that name, for as long as the block lasts.

    Args:
        engine: ``embedded``, ``transformers``, or the URL of a llama.cpp or vLLM server.
        model: for the first two: a GGUF file, for the second also a folder; ``None``: SmolLM2-135M.

    Raises:
        ConfigError: it is none of these.
        EngineError: it does not start, or does not answer.
        MissingExtraError: what it needs is not installed.
    """
    if engine == "embedded":
        from prefixpilot.engines.llamacpp import EmbeddedEngine
        from prefixpilot.engines.models import resolve_model

        file = resolve_model(model)
        with EmbeddedEngine(file, parallel=1) as started:
            yield LlamaCpp(started.base_url, f"embedded llama.cpp, {file.stem}")
    elif engine == "transformers":
        from prefixpilot.bench.quality.local import LocalModel
        from prefixpilot.engines.models import resolve_model

        yield LocalModel(model if model is not None and model.is_dir() else resolve_model(model))
    elif engine.startswith(("http://", "https://")):
        yield _running(engine)
    else:
        raise ConfigError("--engine", f"is {engine!r}", "use embedded, transformers, or a URL")


def _running(url: str) -> QualityEngine:
    client = Client(url, timeout_s=30)
    models = _asked(client, "/v1/models", None).get("data") or [{}]
    model = str(models[0].get("id"))
    if client.get("/props").status == 200:
        return LlamaCpp(url, f"llama.cpp, {model}")
    if client.get("/version").status == 200:
        return Vllm(url, model)
    raise ConfigError("--engine", f"{url} is neither llama.cpp nor vLLM", "only they say how likely a given text is")


def _told(client: Client, path: str, body: Mapping[str, Any] | None, name: str) -> Any:
    """One member of an answer. Raises EngineError."""
    answered = _asked(client, path, body)
    if name not in answered:
        raise EngineError(f"{path} was answered without {name!r}: no engine that quality knows")
    return answered[name]


def _asked(client: Client, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
    answer = client.get(path) if body is None else client.post(path, body)
    value = answer.json() if answer.status == 200 else None
    if not isinstance(value, dict):
        shown = answer.body[:300].decode("utf-8", "replace")
        raise EngineError(f"{path} was answered with {answer.status or 'no answer'}: {shown}")
    return value
