"""Calls the caller's functions as the model asks for. A call that cannot be made is told to the model, in words."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from prefixpilot.errors import EngineError
from prefixpilot.rag.client import Reply
from prefixpilot.rag.tool_results import ToolCall
from prefixpilot.rag.turn import Turn

Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""What the model may call, by the name in the schema. Keyword arguments in; a text, or what ``json`` can write, out.

What a function raises ends the turn: catch there what the model should be told instead.
"""

MAX_ROUNDS: Final = 16
"""Of tool calls in one turn."""


def check_calls(turn: Turn, reply: Reply, functions: Functions | None) -> None:
    """Raise ``EngineError`` where the calls of a reply cannot be answered at all."""
    if functions is None:
        raise EngineError(f"the model called {reply.calls[0].name!r}; give functions={{...}} to ask()")
    if turn.rounds >= MAX_ROUNDS:
        raise EngineError(f"the model has called tools in {MAX_ROUNDS} rounds without an answer")


def bound(functions: Functions, call: ToolCall) -> Callable[[], Any] | str:
    """The call, ready to be made; or what is wrong with it, for the model."""
    function = functions.get(call.name)
    if function is None:
        return f"Error: there is no tool {call.name!r}; there are: {', '.join(sorted(functions))}"
    try:
        arguments = json.loads(call.arguments or "{}")
        if not isinstance(arguments, dict):
            return "Error: the arguments are not a JSON object"
        inspect.signature(function).bind(**arguments)
    except (ValueError, TypeError) as error:
        return f"Error: {error}"
    return lambda: function(**arguments)


def as_text(result: Any) -> str:
    """A result as the model reads it."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def call_all(functions: Functions, reply: Reply) -> list[tuple[ToolCall, str]]:
    """Make the calls of a reply, one after the other."""
    made = ((call, bound(functions, call)) for call in reply.calls)
    return [(call, ready if isinstance(ready, str) else as_text(ready())) for call, ready in made]


async def acall_all(functions: Functions, reply: Reply) -> list[tuple[ToolCall, str]]:
    """As :func:`call_all`; functions may be coroutine functions. Others hold the event loop while they run."""
    results = []
    for call in reply.calls:
        ready = bound(functions, call)
        result = ready if isinstance(ready, str) else ready()
        results.append((call, as_text(await result if inspect.isawaitable(result) else result)))
    return results
