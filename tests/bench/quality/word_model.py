"""A language model of words, served as llama.cpp and vLLM serve theirs: what was said often is likely."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prefixpilot.testing.loopback import LoopbackServer

VOCABULARY = 1000


class WordModel:
    """Tokens are words, numbered as they come; after ``before`` a word's chance is (1 + its count) / (1000 + words).

    Attributes:
        asked: paths of the requests, in order.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.asked: list[str] = []

    def tokens(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in text.split()]

    def text(self, tokens: Sequence[int]) -> str:
        words = list(self._ids)
        return " ".join(words[token] for token in tokens)

    def log_probability(self, before: Sequence[int], token: int) -> float:
        return log((1 + list(before).count(token)) / (VOCABULARY + len(before)))

    def drawn(self, before: Sequence[int], count: int) -> list[int]:
        """The most frequent words, each once; of equal ones the first."""
        return sorted(dict.fromkeys(before), key=lambda token: -list(before).count(token))[:count]


def prompt_of(messages: Sequence[Mapping[str, str]]) -> str:
    """The chat template."""
    return " ".join([*(f"<{m['role']}> {m['content']}" for m in messages), "<assistant>"])


@contextmanager
def served(model: WordModel, kind: str) -> Iterator[str]:
    """The URL of a server of that kind: ``llama.cpp`` or ``vllm``."""
    paths = {"llama.cpp": _llama_cpp(model), "vllm": _vllm(model), "other": {}}[kind]

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "words"}]})

    async def answer(request: Request) -> Response:
        model.asked.append(request.url.path)
        body = json.loads(await request.body() or b"{}")
        return JSONResponse(paths[request.url.path](body))

    routes = [Route("/v1/models", models), *(Route(path, answer, methods=["GET", "POST"]) for path in paths)]
    server = LoopbackServer(Starlette(routes=routes))
    try:
        yield server.start()
    finally:
        server.stop()


def _llama_cpp(model: WordModel) -> dict[str, Any]:
    def complete(body: dict[str, Any]) -> dict[str, Any]:
        before = body["prompt"]
        if "logit_bias" not in body:
            return {"content": " " + model.text(model.drawn(before, body["n_predict"]))}
        token = body["logit_bias"][0][0]
        return {"completion_probabilities": [{"id": token, "logprob": model.log_probability(before, token)}]}

    return {
        "/props": lambda body: {},
        "/apply-template": lambda body: {"prompt": prompt_of(body["messages"])},
        "/tokenize": lambda body: {"tokens": model.tokens(body["content"])},
        "/completion": complete,
    }


def _vllm(model: WordModel) -> dict[str, Any]:
    def tokenize(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": model.tokens(body["prompt"] if "prompt" in body else prompt_of(body["messages"]))}

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        told = [None, *({str(t): {"logprob": model.log_probability(prompt[:i], t)}} for i, t in enumerate(prompt) if i)]
        text = model.text(model.drawn(prompt, body["max_tokens"]))
        return {"choices": [{"text": text, **({"prompt_logprobs": told} if "prompt_logprobs" in body else {})}]}

    return {"/version": lambda body: {"version": "0"}, "/tokenize": tokenize, "/v1/completions": complete}
