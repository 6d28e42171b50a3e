"""The OpenAI SDK: ``wrap(client)`` gives the client with ``context_blocks`` and ``conversation_id`` on its calls.

The client is wrapped and not changed; all that is not named here is its own. It also serves the OpenAI Agents SDK, as
the client of its model provider.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

from prefixpilot.adapters.calls import PlannedCall, plan_call
from prefixpilot.adapters.conversations import Conversations, Prepared
from prefixpilot.apis import CHAT, RESPONSES, Api
from prefixpilot.errors import InvalidRequestError, MissingExtraError
from prefixpilot.prompts.blocks import Block

try:
    from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
except ImportError:
    raise MissingExtraError("openai", 'pip install "prefixpilot[openai]"') from None

OnSent: TypeAlias = Callable[[Prepared], object]
Whole = TypeVar("Whole")
Streamed = TypeVar("Streamed")


@overload
def wrap(
    client: OpenAI, conversations: Conversations | None = None, *, on_sent: OnSent | None = None
) -> PlannedOpenAI: ...
@overload
def wrap(
    client: AsyncOpenAI, conversations: Conversations | None = None, *, on_sent: OnSent | None = None
) -> PlannedAsyncOpenAI: ...
def wrap(
    client: OpenAI | AsyncOpenAI, conversations: Conversations | None = None, *, on_sent: OnSent | None = None
) -> PlannedOpenAI | PlannedAsyncOpenAI:
    """The client whose ``chat.completions`` and ``responses`` plan context blocks, in ``create`` and ``parse``.

    They take two more arguments: ``context_blocks``, most relevant first, which go in front of the newest user message;
    and ``conversation_id``, under which earlier turns stand in the prompt again as they were sent, and are not sent
    twice. Calls without both are the client's own. Errors are the SDK's, and ``InvalidRequestError`` for blocks that
    cannot be used. Thread-safe.

    Args:
        client: a client of the SDK, or of a subclass (Azure).
        conversations: shared by several clients of one credential; its own if ``None``.
        on_sent: called once the engine has taken a planned request, with its labels by which ``[Doc 3]`` in an answer
            is resolved.

    Raises:
        InvalidRequestError: it is no such client.
    """
    planner = _Planner(Conversations() if conversations is None else conversations, on_sent)
    if isinstance(client, AsyncOpenAI):
        return PlannedAsyncOpenAI(client, planner)
    if isinstance(client, OpenAI):
        return PlannedOpenAI(client, planner)
    raise InvalidRequestError("client", f"is {type(client).__name__}", "give an openai.OpenAI or openai.AsyncOpenAI")


class _Planner:
    """What all resources of one client share."""

    def __init__(self, conversations: Conversations, on_sent: OnSent | None) -> None:
        self.conversations = conversations
        self._on_sent = on_sent

    def plan(self, api: Api, arguments: dict[str, Any]) -> PlannedCall:
        """The call without our arguments."""
        conversation_id = arguments.pop("conversation_id", None)
        return plan_call(self.conversations, api, arguments, conversation_id)

    def sent(self, call: PlannedCall, answer: Any) -> None:
        """The engine has taken it."""
        self.conversations.sent(call.prepared, _reply(answer))
        if self._on_sent is not None and call.prepared.turn is not None:
            self._on_sent(call.prepared)


def _reply(answer: Any) -> str | None:
    """The text of an answer that is complete."""
    if isinstance(answer, ChatCompletion):
        content: Any = answer.choices[0].message.content if answer.choices else None
        return content if isinstance(content, str) else "" if content is None and answer.choices else None
    return answer.output_text if isinstance(answer, Response) else None


class _Wrapped:
    """Everything that is not ours is that of the object inside."""

    def __init__(self, inner: Any, planner: _Planner) -> None:
        self._inner = inner
        self._planner = planner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class PlannedCalls(_Wrapped, Generic[Whole, Streamed]):
    """``chat.completions`` or ``responses``; of an async client its answers are awaited.

    Of Responses with ``previous_response_id`` or ``conversation`` the server keeps the history: nothing of earlier
    turns is known here, and nothing is restored.
    """

    def __init__(self, inner: Any, planner: _Planner, api: Api) -> None:
        super().__init__(inner, planner)
        self._api = api

    @overload
    def create(
        self,
        *,
        model: str,
        stream: Literal[False] | None = None,
        context_blocks: Iterable[Block] | None = None,
        conversation_id: str | None = None,
        **arguments: Any,
    ) -> Whole: ...
    @overload
    def create(
        self,
        *,
        model: str,
        stream: Literal[True],
        context_blocks: Iterable[Block] | None = None,
        conversation_id: str | None = None,
        **arguments: Any,
    ) -> Streamed: ...
    def create(self, **arguments: Any) -> Any:
        """See :func:`wrap`, and the SDK for all other arguments."""
        return self._call(self._inner.create, arguments)

    def parse(self, **arguments: Any) -> Any:
        """See :func:`wrap`, and the SDK for all other arguments and what it returns."""
        return self._call(self._inner.parse, arguments)

    def _call(self, method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        call = self._planner.plan(self._api, arguments)
        answer = method(**call.arguments)
        if isawaitable(answer):
            return self._awaited(call, answer)
        self._planner.sent(call, answer)
        return answer

    async def _awaited(self, call: PlannedCall, answer: Awaitable[Any]) -> Any:
        complete = await answer
        self._planner.sent(call, complete)
        return complete


class PlannedChat(_Wrapped, Generic[Whole, Streamed]):
    """``chat``."""

    @property
    def completions(self) -> PlannedCalls[Whole, Streamed]:
        """Planned; see :func:`wrap`."""
        return PlannedCalls(self._inner.completions, self._planner, CHAT)


class _Client(_Wrapped):
    def with_options(self, **options: Any) -> Self:
        """As the SDK's, wrapped, with the same conversations."""
        return type(self)(self._inner.with_options(**options), self._planner)


class PlannedOpenAI(_Client):
    """An ``OpenAI`` client, wrapped; see :func:`wrap`."""

    @property
    def chat(self) -> PlannedChat[ChatCompletion, Stream[ChatCompletionChunk]]:
        """``completions`` is planned."""
        return PlannedChat(self._inner.chat, self._planner)

    @property
    def responses(self) -> PlannedCalls[Response, Stream[ResponseStreamEvent]]:
        """Planned; see :func:`wrap`."""
        return PlannedCalls(self._inner.responses, self._planner, RESPONSES)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


class PlannedAsyncOpenAI(_Client):
    """An ``AsyncOpenAI`` client, wrapped; see :func:`wrap`."""

    @property
    def chat(self) -> PlannedChat[Awaitable[ChatCompletion], Awaitable[AsyncStream[ChatCompletionChunk]]]:
        """``completions`` is planned."""
        return PlannedChat(self._inner.chat, self._planner)

    @property
    def responses(self) -> PlannedCalls[Awaitable[Response], Awaitable[AsyncStream[ResponseStreamEvent]]]:
        """Planned; see :func:`wrap`."""
        return PlannedCalls(self._inner.responses, self._planner, RESPONSES)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)
