"""What a picture of a cache says: what came of a request, and how much is held. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from prefixpilot.proxy.cache.fronts import Parting
from prefixpilot.proxy.cache.routes import Verdict
from prefixpilot.residency.attribution import Cause


class Finding(NamedTuple):
    """What came of one request.

    Attributes:
        state: how the cache is known.
        predicted, reported: cached tokens; ``None`` is unknown. Predicted is as of when the engine looked, where its
            events tell when that was; else by what was known when the request went out.
        basis: of the prediction.
        verdict: ``None`` where one of both is unknown.
        cause: why less was reused than could have been, or another number than was predicted.
        missed_tokens: how many fewer.
        mismatched: the engine counted another number of tokens than it told of this prompt.
        behind: what was known when the request went out gave another number than ``predicted``: events came later.
        usable: tokens of its prompt that the engine can have cached at most; ``None``: its length was not reported.
        parting: where its front parts from those of the requests before; ``None``: nowhere, or it is not known.
    """

    state: str
    predicted: int | None
    reported: int | None
    basis: str | None
    verdict: Verdict | None
    cause: Cause | None
    missed_tokens: int
    mismatched: bool = False
    behind: bool = False
    parting: Parting | None = None
    usable: int | None = None

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        parting = None if self.parting is None else self.parting.shown()
        return {**self._asdict(), "cause": None if self.cause is None else self.cause.value, "parting": parting}


class Sizes(NamedTuple):
    """How much is held.

    Attributes:
        page_size: tokens, as events tell, or of our own model; ``None`` as long as it is not known.
        capacity_tokens: of our own model, given, told or learnt; ``None`` as long as it is not known.
        pages: that the engine is known to hold.
        contexts: whose pages are known.
    """

    page_size: int | None
    capacity_tokens: int | None
    pages: int
    contexts: int
