"""What follows requests asks of a picture of a cache, whoever keeps it: an engine's, or that of a hosted provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Protocol

from prefixpilot.apis.base import Prompt
from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.cache.finding import Finding, Sizes
from prefixpilot.proxy.cache.watch import Marks, PageTokens, Watch
from prefixpilot.residency.state import CacheState


class Picture(Protocol):
    """A picture of a cache. What is slow is called on one thread, the tracker's."""

    @property
    def state(self) -> CacheState:
        """How well it is known. From any thread."""
        ...

    @property
    def marks(self) -> Marks:
        """What has been applied of each cache. From any thread."""
        ...

    def read(self, watch: Watch, prompt: Prompt | None) -> None:
        """A request has gone out, and all is there that will be known of it: sets its prediction, if there is one."""
        ...

    def settle(self, watch: Watch) -> Finding:
        """Its answer is over: compares and corrects."""
        ...

    def failed(self, watch: Watch) -> None:
        """It got no answer."""
        ...

    def apply(self, batch: EventBatch) -> int:
        """Takes events over; returns how many contexts they shortened. On the source's thread."""
        ...

    def came(self) -> Set[PageTokens]:
        """Which of the awaited tokens were told since this was last asked. On the source's thread."""
        ...

    def awaits(self, watch: Watch) -> PageTokens | None:
        """The tokens whose events say that all of an answered request has been told; ``None``: nothing will be."""
        ...

    def look(self, watch: Watch, *, last_time: bool = False) -> bool:
        """Sets ``watch.look``, if it can; whether the request can be settled."""
        ...

    def unheard(self, watch: Watch, now: float) -> None:
        """The events of an answered request were waited for in vain, until now (seconds of ``watch.sent_at``'s
        clock)."""
        ...

    @property
    def silence(self) -> int:
        """How many such requests in a row must have been told of, with no batch since the first of them went out; of
        those whose waits overlap one counts. On the source's thread."""
        ...

    def note(self, status: SourceStatus) -> None:
        """A source of events has changed. On the source's thread."""
        ...

    def unfollow(self) -> None:
        """The sources are followed no more; others may be."""
        ...

    def evict(self, request_ids: Iterable[str]) -> None:
        """The prefixes of these requests are gone."""
        ...

    def forget_contexts(self) -> None:
        """The index is empty."""
        ...

    def why(self) -> str:
        """What keeps it from being known better, beside what its sources say of themselves; empty if nothing does.
        From any thread."""
        ...

    def sizes(self) -> Sizes:
        """How much is held. From any thread."""
        ...

    def described(self) -> Mapping[str, Any]:
        """What else ``/stats`` says of it. From any thread."""
        ...
