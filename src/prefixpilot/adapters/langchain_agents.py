"""LangChain agents: a middleware that keeps the documents of an agent's conversation in the engine's cache.

Documents that tools return (``response_format="content_and_artifact"`` with documents as the artifact, as LangChain's
retriever tools can do) get labels; where a tool returns one again, a reference stands in its place. With a
``retriever`` the documents for each user message are put in front of it. The agent's own messages stay as they are:
what is sent in their place is kept beside them in the agent's state, so in its checkpoints, under its ``thread_id``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, NotRequired

from prefixpilot.adapters.passages import Above, Form, Former, digest_of, render
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.documents import Document
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
    from langchain_core.runnables import Runnable
except ImportError:
    raise MissingExtraError("langchain", 'pip install "prefixpilot[langchain]"') from None


class PrefixPilotState(AgentState[Any]):
    """An agent's state with the forms of its messages, by their ids."""

    prefixpilot_forms: NotRequired[Annotated[dict[str, Form], PrivateStateAttr]]


class PrefixPilotMiddleware(AgentMiddleware[PrefixPilotState, Any, Any]):
    """Labels, orders and de-duplicates the documents in what an agent's model reads.

    No document is lost: each stands in full, or as a reference to a place above in the same prompt; where the history
    is cut (trimmed, summarized) it stands in full again. What was sent is sent again unchanged. Thread-safe.

    Args:
        retriever: gives the documents for a user's message, the most relevant first: a LangChain retriever, or any
            other runnable from a text to documents. ``None``: documents come from tools only.
        pilot: may be shared with other adapters; a new one if ``None``.
        scope: names the agent, if several share a pilot.
    """

    state_schema = PrefixPilotState

    def __init__(
        self,
        retriever: Runnable[str, Sequence[Document]] | None = None,
        *,
        pilot: ContextPilot | None = None,
        scope: str = "",
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.pilot = ContextPilot() if pilot is None else pilot
        self._former = Former(self.pilot, scope)

    # -- decide, once for each message

    def before_model(self, state: PrefixPilotState, runtime: Any) -> dict[str, Any] | None:
        """Decide the forms of new messages."""
        asked = self._question(state)
        found = self.retriever.invoke(asked.text) if self.retriever is not None and asked is not None else ()
        return self._decided(state, asked, found)

    async def abefore_model(self, state: PrefixPilotState, runtime: Any) -> dict[str, Any] | None:
        """As :meth:`before_model`."""
        asked = self._question(state)
        found = await self.retriever.ainvoke(asked.text) if self.retriever is not None and asked is not None else ()
        return self._decided(state, asked, found)

    def _question(self, state: PrefixPilotState) -> HumanMessage | None:
        """The user's message that documents are wanted for: the newest, if no model has answered it and it has none."""
        last = state["messages"][-1] if state["messages"] else None
        if not isinstance(last, HumanMessage) or _form_of(last, state.get("prefixpilot_forms", {})) is not None:
            return None
        return last

    def _decided(
        self, state: PrefixPilotState, asked: HumanMessage | None, found: Sequence[Document]
    ) -> dict[str, Any] | None:
        known = state.get("prefixpilot_forms", {})
        forms: dict[str, Form] = {}
        texts: list[str] = []
        for message in state["messages"]:
            form = _form_of(message, known)
            if form is None:
                documents = found if message is asked else ()
                form = self._new_form(message, documents, Above(tuple(forms.values()), texts))
            if form is not None and message.id is not None:
                forms[message.id] = form
            texts.append(message.text)
        return None if forms == known else {"prefixpilot_forms": forms}

    def _new_form(self, message: AnyMessage, found: Sequence[Document], above: Above) -> Form | None:
        if found:
            return self._former.in_front(message.text, _texts(found), above)
        if isinstance(message, ToolMessage) and isinstance(message.content, str):
            return self._former.inside(message.content, _texts(message.artifact), above)
        return None

    # -- send, each time

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | AIMessage:
        """Let the model read the forms in the place of the messages."""
        return handler(self._sent(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | AIMessage:
        """As :meth:`wrap_model_call`."""
        return await handler(self._sent(request))

    def _sent(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        state: Any = request.state
        known: dict[str, Form] = state.get("prefixpilot_forms", {})
        formed = [(i, form) for i, m in enumerate(request.messages) if (form := _form_of(m, known)) is not None]
        messages = list(request.messages)
        texts = render((form for _, form in formed), self.pilot.config.templates)
        for (i, _), text in zip(formed, texts, strict=True):
            messages[i] = _with(messages[i], text)
        return request.override(messages=messages)


def _form_of(message: AnyMessage, forms: dict[str, Form]) -> Form | None:
    """Of this very text."""
    form = forms.get(message.id) if message.id is not None else None
    return form if form is not None and form["content"] == digest_of(message.text) else None


def _texts(documents: Any) -> list[str]:
    """Of an artifact that may be anything."""
    given: Iterable[Any] = documents if isinstance(documents, list | tuple) else ()
    return [document.page_content for document in given if isinstance(document, Document)]


def _with(message: AnyMessage, text: str) -> AnyMessage:
    """A copy with its form: in the place of a tool's result, in front of a user's own words."""
    content: Any = text
    if not isinstance(message, ToolMessage):
        own = message.content
        content = text + own if isinstance(own, str) else [{"type": "text", "text": text}, *own]
    return message.model_copy(update={"content": content})
