"""What is said of each request once it is over: one line in the log, figures for the metrics, and a span."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, time, time_ns
from typing import Any, Final, TypeAlias

from prefixpilot.core import TenantId
from prefixpilot.jsontext import JsonText, UnreadableError
from prefixpilot.proxy.call import Call, unfold
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.logs import ACCESS, FIELDS
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.wire.headers import RawHeaders

OWN: Final = "own"
PASSED: Final = "other"
"""What ``api`` says of our own paths, and of those that are passed on unread."""

access_log = logging.getLogger(ACCESS)


@dataclass(slots=True)
class Account:
    """One request from its head to the end of its answer. Filled in as it goes; no text of the client but its ids.

    Attributes:
        request_id: the client's, or made here.
        method, path: as sent, the query left out, because keys may stand in it.
        api: ``chat``, ``completions``, ``responses`` or ``messages``; else :data:`OWN` or :data:`PASSED`.
        tenant: the default one until it is known.
        model: as the body names it, if the body was read; ``None`` if not.
        treated: the body was changed.
        outcome: ``None`` until it is known.
        status: of the answer; 0 if none was sent.
        code: of our own refusal, else ``None``.
        first_content: monotonic seconds of the engine's first content; ``None`` if it was not seen.
        usage: the engine's counts; ``None``: it reported none, or the answer was not read.
        engine: number of the one that answered, of several; else ``None``.
        started, started_ns: monotonic seconds, and nanoseconds since 1970.
        ended: monotonic seconds, once it is over.
    """

    request_id: str
    method: str
    path: str
    tenant: TenantId
    api: str = PASSED
    model: str | None = None
    treated: bool = False
    outcome: Outcome | None = None
    status: int = 0
    code: str | None = None
    first_content: float | None = None
    usage: Usage | None = None
    engine: int | None = None
    started: float = field(default_factory=monotonic)
    started_ns: int = field(default_factory=time_ns)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """From its head to the end of its answer, or until now."""
        return (monotonic() if self.ended is None else self.ended) - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds from its head to the engine's first content."""
        return None if self.first_content is None else self.first_content - self.started

    def figures(self) -> dict[str, Any]:
        """What the access line shows. ``None`` is unknown, never zero."""
        usage = self.usage or Usage(None, None)
        return {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "api": self.api,
            "tenant": self.tenant,
            "outcome": self.outcome,
            "status": self.status,
            "code": self.code,
            "treated": self.treated,
            "ms": round(self.seconds * 1000, 1),
            "ttft_ms": None if self.ttft is None else round(self.ttft * 1000, 1),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            **({} if self.engine is None else {"engine": self.engine}),
        }


Export: TypeAlias = Callable[[Account, RawHeaders], None]
"""Takes an account that is closed, and the headers of its request."""


def model_of(call: Call, max_bytes: int) -> str | None:
    """The model that a body names; ``None`` if it names none, or cannot be read. O(bytes)."""
    try:
        model = JsonText.read(unfold(call, max_bytes)).value.get("model")
    except UnreadableError:
        return None
    return model if isinstance(model, str) else None


_LINE: Final = logging.LogRecord(ACCESS, logging.INFO, __file__, 0, "request", None, None)


def _line(account: Account) -> logging.LogRecord:
    """As ``access_log.info`` makes it, but nobody looks for who calls and for the names of that file: it is us."""
    record, created = object.__new__(logging.LogRecord), time()
    since_start = _LINE.relativeCreated + (created - _LINE.created) * 1000
    told = {"created": created, "msecs": created % 1 * 1000, "relativeCreated": since_start, FIELDS: account.figures()}
    vars(record).update(vars(_LINE), **told)
    return record


class Accounts:
    """Closes accounts: counts them, writes their line, and hands them to who else asks.

    Args:
        export: makes a span of an account; ``None`` for none.
    """

    def __init__(self, metrics: Metrics, export: Export | None = None) -> None:
        self._metrics = metrics
        self._export = export

    def close(self, account: Account, headers: RawHeaders) -> None:
        """The request, which had those headers, is over. Our own paths are in the log only."""
        account.ended = monotonic()
        if access_log.isEnabledFor(logging.INFO):
            access_log.handle(_line(account))
        if account.api == OWN:
            return
        self._metrics.count_time(account.seconds, account.ttft, treated=account.treated)
        if self._export is not None and account.api != PASSED:
            self._export(account, headers)
