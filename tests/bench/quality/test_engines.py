"""Scoring a given answer: over the wire of both engines on a model whose figures are known, and on llama.cpp."""

from __future__ import annotations

import pytest
from tests.bench.quality.word_model import WordModel, prompt_of, served

from prefixpilot.bench.quality.base import Bounds
from prefixpilot.bench.quality.cases import Messages
from prefixpilot.bench.quality.engines import LlamaCpp, Vllm, opened
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.errors import ConfigError, EngineError
from prefixpilot.testing import SimulatedEngine

ASKED: Messages = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "stones stones stones mill mill bridge how many"},
)


@pytest.mark.parametrize(("kind", "engine"), [("llama.cpp", LlamaCpp), ("vllm", Vllm)])
def test_the_model_s_own_figures(kind: str, engine: type) -> None:
    model = WordModel()
    with served(model, kind) as url, opened(url, None) as found:
        assert isinstance(found, engine)
        scored = found.measure(ASKED, "stones mill quay one more", Bounds(2, 3))
    before = model.tokens(prompt_of(ASKED))
    wanted = model.tokens("stones mill quay")
    likely = sum(model.log_probability([*before, *wanted[:i]], token) for i, token in enumerate(wanted))
    assert scored.answer == "stones mill"
    assert scored.log_likelihood == pytest.approx(likely)
    assert (scored.tokens, scored.prompt_tokens) == (3, len(before))


def test_other_engines_are_refused() -> None:
    with served(WordModel(), "other") as url, pytest.raises(ConfigError, match=r"neither llama\.cpp nor vLLM"):
        opened(url, None).__enter__()
    with pytest.raises(ConfigError, match="use embedded, transformers, or a URL"):
        opened("gpu", None).__enter__()
    with pytest.raises(EngineError, match="no answer"):
        opened("http://127.0.0.1:9", None).__enter__()


def test_an_engine_that_knows_no_templates_is_told_of() -> None:
    with SimulatedEngine() as engine, pytest.raises(EngineError, match="/apply-template was answered without 'prompt'"):
        LlamaCpp(engine.base_url, "none").measure(ASKED, "mill", Bounds(2, 3))


@pytest.mark.engine
def test_a_character_of_several_tokens_ends_no_run(tiny_engine: EmbeddedEngine) -> None:
    engine = LlamaCpp(tiny_engine.base_url, "tiny")
    scored = engine.measure(ASKED, "\U0001f642 town", Bounds(4, 8))
    assert scored.tokens >= 1 and scored.log_likelihood < 0


@pytest.mark.engine
def test_llama_cpp_scores_what_it_would_say_above_what_it_would_not(tiny_engine: EmbeddedEngine) -> None:
    engine = LlamaCpp(tiny_engine.base_url, "tiny")
    asked: Messages = ({"role": "user", "content": "Name the river that bends north by the quality mill."},)
    said = engine.measure(asked, "The river.", Bounds(4, 4))
    assert said.answer and said.log_likelihood < 0
    own = engine.measure(asked, said.answer, Bounds(4, 4))
    assert own.log_likelihood / own.tokens > said.log_likelihood / said.tokens
    assert own.answer == said.answer
    one = engine.measure(asked, said.answer, Bounds(4, 1))
    assert 0 > one.log_likelihood > own.log_likelihood
