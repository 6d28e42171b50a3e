"""Token ids from a tokenizer on this machine, and the same predictions with them as with the engine's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prefixpilot import ContextPilot, Request
from prefixpilot.errors import ConfigError
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.cache.local_tokens import LocalTokens
from prefixpilot.proxy.cache.prompts import EnginePrompt, block_spans
from prefixpilot.proxy.cache.tokens import Asked

from .support import WORDS, texts

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% if think is defined %}<think>{% endif %}{% endif %}"
)


def make_tokenizer(folder: Path, **config: Any) -> Path:
    """A byte-level BPE of a few words, with its files as models have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 5, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, **config}))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path, chat_template=TEMPLATE)


def told(folder: Path, body: Any, api: str = "chat") -> EnginePrompt | None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    tokenized = LocalTokens(str(folder)).read(Asked(api, data, []))
    assert (tokenized.prompt is None) == (tokenized.got == "refused")
    return tokenized.prompt


def text_of(prompt: EnginePrompt | None) -> str:
    assert prompt is not None and len(prompt.pieces) == prompt.tokens
    return b"".join(prompt.pieces).decode()


MESSAGES = [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "When does the pool open?"}]
RENDERED = "<s><|system|>\nSé breve.\n<|user|>\nWhen does the pool open?\n"


def test_a_chat_is_rendered_by_the_template(model: Path) -> None:
    assert text_of(told(model, {"messages": MESSAGES})) == RENDERED + "<|assistant|>\n"
    assert text_of(told(model, {"messages": MESSAGES, "add_generation_prompt": False})) == RENDERED
    more = {"chat_template_kwargs": {"think": True}}
    assert text_of(told(model, {"messages": MESSAGES, **more})) == RENDERED + "<|assistant|>\n<think>"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert json.dumps(tools) in text_of(told(model, {"messages": MESSAGES, "tools": tools}))


def test_parts_of_a_message_are_joined(model: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<|user|>\na\nb\n" in text_of(told(model, {"messages": [{"role": "user", "content": parts}]}))


def test_a_completion_is_its_prompt(model: Path) -> None:
    assert text_of(told(model, {"prompt": "the pool opens"}, "completions")) == "the pool opens"


def test_the_newer_place_of_a_template(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert text_of(told(tmp_path, {"messages": MESSAGES})).startswith(RENDERED)


def test_the_default_of_several_templates(tmp_path: Path) -> None:
    make_tokenizer(
        tmp_path, chat_template=[{"name": "rag", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    )
    assert text_of(told(tmp_path, {"messages": MESSAGES})).startswith(RENDERED)


def test_messages_and_responses_are_rendered_as_the_chats_they_are(model: Path) -> None:
    system, *rest = MESSAGES
    as_chat = told(model, {"messages": MESSAGES})
    assert told(model, {"system": system["content"], "messages": rest}, "messages") == as_chat
    assert told(model, {"instructions": system["content"], "input": rest}, "responses") == as_chat


@pytest.mark.parametrize(
    ("body", "api"),
    [
        (b"no json", "chat"),
        ([], "chat"),
        ({"messages": "x"}, "chat"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "chat"),
        ({"messages": MESSAGES, "continue_final_message": True}, "chat"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat"),
        ({"messages": [1]}, "chat"),
        ({"prompt": ["a", "b"]}, "completions"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"input": "x", "conversation": "c"}, "responses"),
        ({"prompt": "\ud800"}, "completions"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "chat"),
    ],
)
def test_what_the_engine_may_write_otherwise_is_not_told(model: Path, body: Any, api: str) -> None:
    assert told(model, body, api) is None


def test_a_model_without_a_template_tells_completions_only(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    assert told(tmp_path, {"messages": MESSAGES}) is None
    assert told(tmp_path, {"prompt": "a"}, "completions") is not None


def test_blocks_are_found_in_it(model: Path) -> None:
    plan = ContextPilot().optimize(Request.from_texts("r", texts(4, 20)))
    prompt = told(model, {"messages": [{"role": "user", "content": render_blocks(plan) + "\n\nWhich?"}]})
    assert prompt is not None
    spans = block_spans(plan, prompt)
    assert len(spans) == 4
    for span, block in zip(spans, plan.blocks, strict=True):
        assert str(block.block.text) in b"".join(prompt.pieces[span.start : span.end]).decode()


@pytest.mark.parametrize("content", [None, "no json", "{}", "[1]"])
def test_a_directory_without_a_tokenizer(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match="tokenizer"):
        LocalTokens(str(tmp_path))


def test_a_template_that_is_none(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, chat_template="{% for")
    with pytest.raises(ConfigError, match="template"):
        LocalTokens(str(tmp_path))
