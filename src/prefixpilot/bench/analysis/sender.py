"""What the proxy would send for a logged request: the proxy's own objects, driven without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prefixpilot.apis import Api
from prefixpilot.apis.base import Prompt
from prefixpilot.core import ContextBlock, Plan
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.cache.fronts import Front, front_of
from prefixpilot.proxy.call import EXPLAIN, Call, RefusedError
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.ordinary.notes import Note
from prefixpilot.proxy.settings import Mode, ProxySettings
from prefixpilot.proxy.wire import headers as h
from prefixpilot.volatile.base import VolatileRules
from prefixpilot.workloads.request_log import LoggedRequest

NO_RULES: Final = VolatileRules()
_NO_ENGINE: Final = "http://127.0.0.1:9"
_ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": {"choices": [{"index": 0, "message": {"content": "."}, "finish_reason": "stop"}]},
    "completions": {"choices": [{"index": 0, "text": ".", "finish_reason": "stop"}]},
    "responses": {"object": "response", "status": "completed", "output": []},
    "messages": {"type": "message", "content": [{"type": "text", "text": "."}], "stop_reason": "end_turn"},
}
"""What the engine says to a request whose answer is not in the log."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What would have been sent.

    Attributes:
        prompt: of the body sent.
        touched: it is not the body that came.
        front: what of it stands before its documents.
        blocks: context blocks that were found, in the given order: those of the newest turn.
        replaced: texts that became references to where they stand earlier.
    """

    prompt: Prompt
    touched: bool
    front: Front
    blocks: tuple[ContextBlock, ...]
    replaced: int


class Sender:
    """One proxy that sends nothing. Bounded as the proxy is: what it keeps of conversations and of the index.

    Args:
        cache_tokens: of the engine's cache, which bounds the index; ``None``: unknown.
        mode: ``on``, or ``off``: the given order in the proxy's own template.
        dedupe: whether what stands twice may become a reference.
        rules: for volatile text.
    """

    def __init__(
        self,
        cache_tokens: int | None,
        *,
        mode: Mode = "on",
        dedupe: bool = True,
        rules: VolatileRules = NO_RULES,
    ) -> None:
        settings = ProxySettings(engine=_NO_ENGINE, mode=mode, cache_tokens=cache_tokens, volatile=rules)
        self._pipeline = ProxyApp(settings).pipeline
        self._headers = [(b"content-type", b"application/json"), (h.DEDUPE, b"on" if dedupe else b"off")]

    def send(self, request: LoggedRequest, body: bytes, prompt: Prompt) -> Sent | None:
        """What would be sent for ``body``, the request's JSON, of which ``prompt`` is read; then the engine answers.

        ``None``: the proxy refuses it (``context_blocks`` that cannot be used).
        """
        try:
            forward = self._pipeline.prepare(self._call(request, body))
        except RefusedError:
            return None
        seen = self._pipeline.observe(forward, 200, "application/json", "")
        seen.feed(json.dumps(request.response or _ANSWERS[request.api.name]).encode())
        seen.finish()
        sent = _read(request.api, forward.body) if forward.touched else prompt
        if sent is None:
            return None
        plans = _plans(forward)
        return Sent(sent, forward.touched, front_of(sent, plans), _blocks(plans), _replaced(forward))

    def explain(self, request: LoggedRequest, body: bytes) -> Sequence[Note]:
        """What the proxy would tell of an ordinary request in mode explain. Nothing is learnt."""
        try:
            return self._pipeline.prepare(self._call(request, body, (h.MODE, EXPLAIN.encode()))).notes
        except RefusedError:
            return ()

    def _call(self, request: LoggedRequest, body: bytes, *more: tuple[bytes, bytes]) -> Call:
        conversation = [(name, value) for name, value in request.headers if name == h.CONVERSATION]
        return Call([*self._headers, *conversation, *more], body, request.api)


def _read(api: Api, body: bytes) -> Prompt | None:
    return api.read(json.loads(body))


def _plans(forward: Forward) -> tuple[Plan, ...]:
    if forward.report is not None:
        return () if forward.report.plan is None else (forward.report.plan,)
    return forward.ticket.treated_plans


def _blocks(plans: Sequence[Plan]) -> tuple[ContextBlock, ...]:
    return tuple(placed.block for plan in plans for placed in sorted(plan.blocks, key=lambda block: block.position))


def _replaced(forward: Forward) -> int:
    if forward.report is not None:
        return forward.report.replaced
    return 0 if forward.treatment is None else forward.treatment.replaced
