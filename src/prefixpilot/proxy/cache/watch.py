"""One request that is followed: what it asked, when it went out, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefixpilot.core import Plan, RequestId
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.control.controller import Route


class Rank(NamedTuple):
    """One cache: a data-parallel rank of one source of events."""

    source: str
    rank: int


Marks = Mapping[Rank, int]
"""Sequence of the last batch applied, by cache. Never changed in place."""


class Facts(NamedTuple):
    """What a body says beside its prompt that selects a cache.

    Attributes:
        model: as named; empty if it is not.
        salt: ``cache_salt``; ``None`` if there is none.
    """

    model: str = ""
    salt: str | None = None


def facts_of(body: bytes) -> Facts:
    """Read them. O(bytes); nothing is known of what is no JSON object."""
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Facts()
    if not isinstance(document, dict):
        return Facts()
    model, salt = document.get("model"), document.get("cache_salt")
    return Facts(model if isinstance(model, str) else "", salt if isinstance(salt, str) and salt else None)


class Prediction(NamedTuple):
    """What was predicted of a request, as of the moment when it went out.

    Attributes:
        tokens: of its prompt that the engine has cached.
        basis: ``events`` or ``model``.
        page_size: tokens in a page.
    """

    tokens: int
    basis: str
    page_size: int


@dataclass(slots=True, eq=False)
class Watch:
    """One request under way.

    Attributes:
        request_id: under which the engine has it.
        route: ``model`` is empty until the body has been read.
        body: as sent; let go once it has been read.
        plans: that were sent with it, and are learnt at its first content.
        treated: the body was changed.
        marks: what was known of each cache when it went out.
        known_by: what was known a moment later, when what the engine had published by then had come; ``None`` before.
        prompt: its tokens; ``None`` as long as they are not known.
        facts: of the body.
        prediction: ``None`` if there is none.
        read: its body has been read, and its tokens are there or will not come.
        began: there was content in its answer; ``None`` before its end.
        prompt_tokens, cached_tokens: as the engine reported them; ``None`` is unknown.
    """

    request_id: RequestId
    route: Route
    body: bytes | None
    plans: tuple[Plan, ...]
    treated: bool
    marks: Marks
    known_by: Marks | None = None
    prompt: EnginePrompt | None = None
    facts: Facts = field(default=Facts())
    prediction: Prediction | None = None
    read: bool = False
    began: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
