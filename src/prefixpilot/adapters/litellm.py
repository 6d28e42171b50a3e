"""LiteLLM: a callback that plans ``context_blocks`` of calls made with the library, its router, or its proxy.

It uses the hook that LiteLLM calls right before a deployment gets a request, in all three. That hook is for async calls
only; for the others there are :meth:`PrefixPilotCallback.completion` and :meth:`PrefixPilotCallback.responses`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from prefixpilot.adapters.calls import PlannedCall, plan_call
from prefixpilot.adapters.conversations import Conversations, Prepared
from prefixpilot.apis import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from prefixpilot.errors import InvalidRequestError, MissingExtraError
from prefixpilot.prompts.blocks import FIELD

try:
    import litellm
    from litellm.integrations.custom_logger import CustomLogger
except ImportError:
    raise MissingExtraError("litellm", 'pip install "prefixpilot[litellm]"') from None

APIS: Final[Mapping[str, Api]] = {
    "acompletion": CHAT,
    "atext_completion": COMPLETIONS,
    "aresponses": RESPONSES,
    "anthropic_messages": MESSAGES,
}
"""By LiteLLM's type of call. All others pass."""

SESSION: Final = "litellm_session_id"
CALL_ID: Final = "litellm_call_id"
MAX_WAITING: Final = 10_000
"""Calls whose answer is waited for."""


class PrefixPilotCallback(CustomLogger):
    """Puts ``context_blocks`` in front of the newest user message, ordered; keeps conversations as they were sent.

    ``litellm.callbacks = [PrefixPilotCallback()]``, or in the proxy's config ``callbacks:
    prefixpilot.adapters.litellm.callback``. A conversation is LiteLLM's session: the argument ``litellm_session_id``,
    or ``session_id`` in the metadata. It belongs to the key of LiteLLM's proxy with which it began. Calls without
    blocks and without a session pass untouched.

    Blocks that cannot be used raise ``litellm.BadRequestError``. Thread-safe.

    Args:
        conversations: shared with other adapters; its own if ``None``.
    """

    def __init__(self, conversations: Conversations | None = None) -> None:
        super().__init__()
        self.conversations = Conversations() if conversations is None else conversations
        self._waiting: OrderedDict[str, Prepared] = OrderedDict()
        self._lock = Lock()

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Plan an async call. ``None``: it passes."""
        api = APIS.get(getattr(call_type, "value", str(call_type)))
        if api is None:
            return None
        call = self._planned(api, kwargs)
        if call.prepared.turn is None:
            return call.arguments if FIELD in kwargs else None
        self.conversations.sent(call.prepared)
        self._await_answer(str(kwargs.get(CALL_ID)), call.prepared)
        return call.arguments

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """The reply of a call that was planned, streamed or not: it tells branches of a conversation apart."""
        with self._lock:
            prepared = self._waiting.pop(str(kwargs.get(CALL_ID)), None)
        if prepared is not None:
            self._answered(prepared, kwargs.get("async_complete_streaming_response") or response_obj)

    def completion(self, **arguments: Any) -> Any:
        """``litellm.completion`` with ``context_blocks``."""
        return self._called(CHAT, litellm.completion, arguments)

    def responses(self, **arguments: Any) -> Any:
        """``litellm.responses`` with ``context_blocks``."""
        return self._called(RESPONSES, litellm.responses, arguments)

    def _called(self, api: Api, function: Any, arguments: dict[str, Any]) -> Any:
        call = self._planned(api, arguments)
        answer = function(**call.arguments)
        self.conversations.sent(call.prepared)
        self._answered(call.prepared, answer)
        return answer

    def _await_answer(self, call_id: str, prepared: Prepared) -> None:
        if prepared.key is not None:
            with self._lock:
                self._waiting[call_id] = prepared
                if len(self._waiting) > MAX_WAITING:
                    self._waiting.popitem(last=False)

    def _answered(self, prepared: Prepared, answer: Any) -> None:
        if isinstance(answer, litellm.ModelResponse) and answer.choices:
            self.conversations.answered(prepared, answer.choices[0].message.content or "")

    def _planned(self, api: Api, arguments: Mapping[str, Any]) -> PlannedCall:
        told = _metadata(arguments)
        session = arguments.get(SESSION) or told.get("session_id")
        owner = told.get("user_api_key_hash") or told.get("user_api_key") or ""
        try:
            return plan_call(self.conversations, api, arguments, session, owner=str(owner))
        except InvalidRequestError as error:
            model = str(arguments.get("model", ""))
            raise litellm.BadRequestError(message=str(error), model=model, llm_provider="prefixpilot") from error


def _metadata(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What LiteLLM and the caller tell of a call; LiteLLM's own word goes before the caller's."""
    told: dict[str, Any] = {}
    for name in ("metadata", "litellm_metadata"):
        told.update(arguments.get(name) or {})
    return told


callback: Final = PrefixPilotCallback()
"""For the config of LiteLLM's proxy, which names an object."""
