"""The controller as the pipeline asks it: which requests take part, and what the engine reported of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefixpilot.apis.base import Prompt, digest
from prefixpilot.blocks import estimate_tokens
from prefixpilot.jsontext import Edit, SetMember
from prefixpilot.proxy.call import Call, Options
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.control.controller import Controller, ControlSettings, Outcome, Route, RouteState, Trial

_STREAM_OPTIONS = "stream_options"
_WITH_STREAM_OPTIONS = ("chat", "completions")


class Trials:
    """Enters requests whose client leaves the mode to us. Not thread-safe.

    Args:
        settings: of the controller; without a hold-out no request takes part.
    """

    def __init__(self, settings: ControlSettings) -> None:
        self._controller = Controller(settings)
        self._ask_usage = settings.ask_usage

    def entered(self, options: Options, call: Call, prompt: Prompt) -> Options:
        """The options with the request's trial. A conversation stays in its arm: it is known by its id, else by its
        first message. O(bytes of that)."""
        if not self._controller.active or options.mode != "on" or options.chosen:
            return options
        model = prompt.body.get("model")
        route = Route(options.tenant, call.api.name, model if isinstance(model, str) else "")
        arm = self._controller.assign(route, _conversation(options, prompt))
        given = estimate_tokens(call.body.decode("utf-8", "replace"))
        return replace(options, trial=Trial(route, arm, given))

    def answered(self, trial: Trial, usage: Usage | None, ttft: float | None) -> None:
        """The engine has answered a request on trial; ``ttft`` in seconds, ``None`` if it did not stream."""
        prompt, cached = (usage.prompt_tokens, usage.cached_tokens) if usage is not None else (None, None)
        self._controller.add(trial.route, trial.arm, Outcome(trial.given_tokens, prompt, cached, None, ttft))

    def edits(self, prompt: Prompt) -> tuple[Edit, ...]:
        """What asks for the usage of a stream, if that is on and the client does not ask."""
        asked: Any = prompt.body.get(_STREAM_OPTIONS)
        if not self._ask_usage or prompt.api not in _WITH_STREAM_OPTIONS or prompt.body.get("stream") is not True:
            return ()
        if asked is None:
            return (SetMember((), _STREAM_OPTIONS, {"include_usage": True}),)
        if not isinstance(asked, dict) or "include_usage" in asked:
            return ()
        return (SetMember((_STREAM_OPTIONS,), "include_usage", True),)

    def states(self) -> list[RouteState]:
        """Of all routes that are judged."""
        return self._controller.states()


def _conversation(options: Options, prompt: Prompt) -> str:
    if options.conversation is not None:
        return f"{options.credential}/{options.conversation}"
    first = next((message.value for message in prompt.messages if message.role != "system"), None)
    return digest(first).hex()
