"""What tools returned in a conversation: a result that stands above, word for word, is not sent a second time. Pure.

A result becomes an annotation if an equal one stands in full above, that one is still the newest result of its call,
and the annotation is shorter. The loop guard: the first repeat only. From the second on it stands in full again, since
a model that asks again does not see what it needs. The proxy follows the same rules (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates, repeat_annotation, result_name
from prefixpilot.blocks import estimate_tokens

MIN_SAVING_TOKENS: Final = 16
"""What an annotation must save, estimated, to be worth a word of ours in the prompt."""


class ToolCall(NamedTuple):
    """What the model asks for; ``arguments`` is the JSON text that it wrote."""

    call_id: str
    name: str
    arguments: str

    @property
    def called(self) -> str:
        """The call as annotations name it."""
        return result_name(self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class ToolResults:
    """Results that stand in full in a conversation. Immutable.

    Attributes:
        newest: the newest full result of each call, by its name.
        times: how often each text has come.
    """

    newest: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    times: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, call: ToolCall, text: str) -> ToolResults:
        """Once ``text`` has come for ``call``, in full or not. O(results)."""
        times = {**self.times, text: self.times.get(text, 0) + 1}
        newest = {**self.newest, call.called: text}
        return ToolResults(MappingProxyType(newest), MappingProxyType(times))

    def sent(self, text: str, templates: Templates = DEFAULT_TEMPLATES) -> str:
        """What to send for a result: the annotation that names where it stands, or ``text``. O(results).

        >>> results, call = ToolResults(), ToolCall("1", "read", '{"path": "a.py"}')
        >>> results = results.after(call, 40 * "x = 1; ")
        >>> results.sent(40 * "x = 1; ")
        '[Unchanged: same text as the latest result of read({"path": "a.py"}) above.]'
        >>> results.after(call, 40 * "x = 1; ").sent(40 * "x = 1; ") == 40 * "x = 1; "
        True
        """
        if self.times.get(text) != 1:
            return text
        name = next((called for called, newest in self.newest.items() if newest == text), None)
        if name is None:
            return text
        words = repeat_annotation(name, templates)
        saved = estimate_tokens(text) - estimate_tokens(words)
        return words if saved >= MIN_SAVING_TOKENS else text
