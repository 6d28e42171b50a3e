"""One request that is followed: what it asked, when it went out, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefixpilot.core import Plan, RequestId
from prefixpilot.providers.hosted_cache import HostedBlock, HostedCache, HostedPast
from prefixpilot.providers.limits import CacheLimits
from prefixpilot.providers.ttl import CacheState
from prefixpilot.proxy.cache.fronts import Front, Parting
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


def read_body(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body; empty if it is none. O(bytes)."""
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def facts_of(body: bytes | Mapping[str, Any]) -> Facts:
    """Read them. O(bytes); nothing is known of what is no JSON object."""
    document = read_body(body) if isinstance(body, bytes) else body
    model, salt = document.get("model"), document.get("cache_salt")
    return Facts(model if isinstance(model, str) else "", salt if isinstance(salt, str) and salt else None)


class Prediction(NamedTuple):
    """What was predicted of a request, by what was known when it went out.

    Attributes:
        tokens: of its prompt that the engine has cached.
        basis: ``events``, ``model`` or ``hosted``.
        page_size: tokens in a page; of a hosted provider, in an increment.
        state: of the entry that a hosted provider would read; else ``None``.
        usable: tokens of the prompt that an engine can have cached at most; ``None``: its length is not known.
    """

    tokens: int
    basis: str
    page_size: int
    state: CacheState | None = None
    usable: int | None = None


def with_expected(header: bytes, prediction: Prediction | None) -> bytes:
    """A plan header with ``expected``: cached tokens by the picture of the cache; as it is without a prediction."""
    if prediction is None:
        return header
    expected = {"cached_tokens": prediction.tokens, "basis": prediction.basis, "state": prediction.state}
    told = {**bounded(json.loads(header), prediction.usable), "expected": expected}
    return json.dumps(told, separators=(",", ":")).encode("ascii")


def bounded(report: Mapping[str, Any], usable: int | None) -> dict[str, Any]:
    """A plan's report in which the index, which estimates lengths, predicts no more than a prompt can have cached."""
    told, name = dict(report), "predicted_cached_tokens"
    if usable is not None and isinstance(told.get(name), int):
        told[name] = min(told[name], usable)
    return told


class Hosting(NamedTuple):
    """A request as a hosted provider has it.

    Attributes:
        cache: of its account and model.
        limits: what the provider says of it.
        blocks: its prompt.
        past: what had been sent of it before, when it went out.
        elsewhere: tokens of it that were cached then for another account or model.
        busy: its cache key was asked for more often than the provider serves from one place.
    """

    cache: HostedCache
    limits: CacheLimits
    blocks: tuple[HostedBlock, ...]
    past: HostedPast
    elsewhere: int
    busy: bool


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
        prompt_tokens, cached_tokens, completion_tokens, written_tokens: as the engine reported them; ``None`` is
            unknown.
        sent_at: seconds of the tracker's clock.
        account: digest of the credentials that it went out with.
        front: what of its prompt stands before its documents; ``None`` where the body could not be read.
        parting: where that parts from the fronts before; ``None``: nowhere, or it is not known.
        hosted: ``None`` where no hosted provider answers.
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
    written_tokens: int | None = None
    sent_at: float = 0.0
    account: bytes = b""
    front: Front | None = None
    parting: Parting | None = None
    hosted: Hosting | None = None
