"""What the tests of sessions share: retrievers without an index, and what reached the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefixpilot.core import ContextBlock
from prefixpilot.retrievers import Retrieved
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.chat_wire import template, tokenize


@dataclass
class Shelf:
    """Finds the texts that a question names (``Which of 3, 1?``), in that order."""

    texts: Sequence[str]
    asked: list[tuple[str, int]] = field(default_factory=list)

    def retrieve(self, query: str, k: int) -> Retrieved:
        self.asked.append((query, k))
        named = [int(word) for word in query.replace(",", " ").replace("?", " ").split() if word.isdigit()][:k]
        return Retrieved(tuple(ContextBlock(self.texts[i]) for i in named), tuple(1.0 for _ in named))


def document(number: int, words: int = 30) -> str:
    return f"Document {number}. " + " ".join(f"word{number}x{i}" for i in range(words))


def sent(engine: SimulatedEngine) -> list[list[Mapping[str, Any]]]:
    """The messages of every chat request, in order."""
    return [chat.json()["messages"] for chat in engine.chats]


def prompts(engine: SimulatedEngine) -> list[str]:
    """What the model read, the head of its answer left out."""
    return [template(messages).removesuffix(template([])) for messages in sent(engine)]


def prompt_tokens(engine: SimulatedEngine) -> int:
    return sum(len(tokenize(template(messages))) for messages in sent(engine))
