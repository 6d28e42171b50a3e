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


PageTokens = tuple[int, ...]
"""Token ids of the last full page of a prompt."""


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
    """What was predicted of a request, by what was known when it went out.

    Attributes:
        tokens: of its prompt that the engine has cached.
        basis: ``events`` or ``model``.
        page_size: tokens in a page.
    """

    tokens: int
    basis: str
    page_size: int


class Look(NamedTuple):
    """What an engine held of a prompt when it looked for it, by what it told until its answer was compared.

    Attributes:
        rank: whose cache it was; if nothing was told of it, the one that held most.
        tokens: of the prompt.
        told: the request's own events have come. If not, it is as of the end of its answer.
        missing: they have not come, though there must be some.
    """

    rank: Rank
    tokens: int
    told: bool
    missing: bool


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
        sent, ended: numbers that rise with each request sent and each answer ended; ``ended`` is -1 before.
        alone: no other request was under way from its sending to the end of its answer.
        marks_then: what was known of each cache when its answer ended.
        prompt: its tokens; ``None`` as long as they are not known.
        facts: of the body.
        prediction: ``None`` if there is none.
        look: ``None`` as long as there is none, and without events.
        awaited: whose events are waited for; ``None``: none.
        read: its body has been read, and its tokens are there or will not come.
        began: there was content in its answer; ``None`` before its end.
        prompt_tokens, cached_tokens, completion_tokens: as the engine reported them; ``None`` is unknown.
    """

    request_id: RequestId
    route: Route
    body: bytes | None
    plans: tuple[Plan, ...]
    treated: bool
    marks: Marks
    sent: int = 0
    ended: int = -1
    alone: bool = False
    marks_then: Marks = field(default_factory=dict)
    prompt: EnginePrompt | None = None
    facts: Facts = field(default=Facts())
    prediction: Prediction | None = None
    look: Look | None = None
    awaited: PageTokens | None = None
    read: bool = False
    began: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
