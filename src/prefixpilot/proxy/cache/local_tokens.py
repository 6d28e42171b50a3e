"""Token ids from a tokenizer on this machine: ``tokenizer.json``, and the chat template that lies beside it."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from prefixpilot.errors import ConfigError, InvalidRequestError, MissingExtraError
from prefixpilot.proxy.cache.as_chat import as_chat
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.tokens import AS_THEY_ARE, Asked, Tokenized
from prefixpilot.proxy.cache.watch import read_body

try:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer
except ImportError:
    raise MissingExtraError("tokenizers", 'pip install "prefixpilot[tokenizers]"') from None

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_REMEDY: Final = "give the directory of the model as the engine loads it"


class LocalTokens:
    """A :class:`~prefixpilot.proxy.cache.tokens.TokenSource` without an engine. Works in threads.

    Renders chats as vLLM and SGLang do by default: the model's own template, a generation prompt behind the last
    message, text parts joined by line breaks. Where the engine does otherwise, the count of tokens shows it.

    Args:
        directory: holds ``tokenizer.json``, ``tokenizer_config.json`` and, in newer models, ``chat_template.jinja``.

    Raises:
        ConfigError: there is no tokenizer that can be read, or its template is none.
    """

    def __init__(self, directory: str) -> None:
        folder = Path(directory)
        if "model" not in _json(folder / "tokenizer.json"):
            raise ConfigError("cache.tokenizer", f"{folder / 'tokenizer.json'} holds no tokenizer", _REMEDY)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = _json(folder / "tokenizer_config.json")
        self._words = {name: word for name in _SPECIAL if (word := _word(config.get(name))) is not None}
        source = _template(folder, config)
        try:
            self._template = None if source is None else _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError("cache.tokenizer", f"its chat template cannot be read ({error})", _REMEDY) from None

    async def tokenized(self, asked: Asked) -> Tokenized:
        """See :class:`~prefixpilot.proxy.cache.tokens.TokenSource`."""
        return await asyncio.to_thread(self.read, asked)

    def read(self, asked: Asked) -> Tokenized:
        """The prompt of a request; ``refused`` where it cannot be told how the engine would write it. O(bytes)."""
        try:
            body = read_body(asked.body)
            if asked.api in AS_THEY_ARE:
                text = self._text(asked.api, body)
            else:
                text = self._text("chat", as_chat(asked.api, body) or {})
            prompt = self._encoded(text, special=asked.api == "completions")
        except (ValueError, RecursionError, TemplateError, TypeError):
            return Tokenized("refused")
        return Tokenized("known", prompt=prompt)

    def _text(self, api: str, body: Mapping[str, Any]) -> str:
        """Raises InvalidRequestError for what it cannot render."""
        if api == "completions" and isinstance(body.get("prompt"), str):
            return str(body["prompt"])
        messages = body.get("messages")
        if api != "chat" or self._template is None or not isinstance(messages, list):
            _refuse("has no text that is known here")
        if body.get("continue_final_message") or body.get("chat_template") is not None:
            _refuse("is rendered in another way")
        more = body.get("chat_template_kwargs")
        return self._template.render(
            **{
                "messages": [_flat(message) for message in messages],
                "tools": body.get("tools"),
                "documents": body.get("documents"),
                "add_generation_prompt": body.get("add_generation_prompt", True),
                **self._words,
                **(more if isinstance(more, dict) else {}),
            }
        )

    def _encoded(self, text: str, *, special: bool) -> EnginePrompt:
        encoding = self._tokenizer.encode(text, add_special_tokens=special)
        pieces, done = [], 0
        for _, end in encoding.offsets:
            pieces.append(text[done:end].encode("utf-8", "surrogatepass"))
            done = max(done, end)
        return EnginePrompt(array("I", encoding.ids), tuple(pieces))


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = _raise
    return made


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _refuse(reason: str) -> NoReturn:
    raise InvalidRequestError("prompt", reason, "ask the engine for its tokens")


def _flat(message: Any) -> dict[str, Any]:
    """A message whose parts, if it has any, are one text."""
    if not isinstance(message, dict):
        _refuse("holds what is no message")
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        _refuse("holds parts that are no text")
    return {**message, "content": "\n".join(str(part.get("text", "")) for part in content)}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError("cache.tokenizer", f"{path} cannot be read ({error})", _REMEDY) from None
    return document if isinstance(document, dict) else {}


def _word(value: Any) -> str | None:
    """A special token, as a text or as ``{"content": text}``."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template's source; ``None``: the model has none, and chats are not told."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    return source if isinstance(source, str) else None
