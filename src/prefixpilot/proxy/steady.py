"""What stands in front of a conversation, kept the same from one request to the next: volatile text and tools.

The rules find and decide (:mod:`prefixpilot.volatile`); here they are told what was sent before, and what they made is
kept once the engine has it. A time that goes from the system text stands behind the newest user message, and behind
every earlier one that had it when it was the newest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates
from prefixpilot.apis.base import Pointer, Prompt
from prefixpilot.apis.rewriting import rewritten
from prefixpilot.jsontext import Edit, Permute, SetText
from prefixpilot.pieces import Form, Span, apply
from prefixpilot.proxy.ordinary.chain import Links
from prefixpilot.proxy.ordinary.told import Times
from prefixpilot.volatile.base import Change, VolatileRules
from prefixpilot.volatile.rules import Treatment, last_text, treat
from prefixpilot.volatile.tool_order import ToolOrder, ToolOrders

Excluded: TypeAlias = Mapping[Pointer, Sequence[Span]]
"""Of system texts, what recognisers found: documents and the like, in which no rule reads."""

_AS_GIVEN = ToolOrder(None, (), ())


@dataclass(frozen=True, slots=True)
class Steadied:
    """A prompt with a steady front.

    Attributes:
        prompt: as it is read then.
        forms: of the client's system texts.
        tools: the old index at each place; ``None``: they stay.
        endings: words that stand behind user messages, by the pointer of their last text.
        changes: all that is new in it, for a dry run.
        learn: called once the engine has it.
    """

    prompt: Prompt
    forms: Mapping[Pointer, Form] = field(default_factory=dict)
    tools: Sequence[int] | None = None
    endings: Mapping[Pointer, str] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    learn: Callable[[], None] | None = None

    @property
    def tool_edits(self) -> tuple[Edit, ...]:
        """The edit of the tools, if they move."""
        return () if self.tools is None else (Permute(("tools",), self.tools),)

    def edits(self, client: Prompt) -> tuple[Edit, ...]:
        """The edits of the client's body but for the endings. O(system text)."""
        texts = {segment.pointer: segment.text for segment in client.segments()}
        written = tuple(SetText(pointer, apply(form, texts[pointer])) for pointer, form in self.forms.items())
        return (*written, *self.tool_edits)

    def ended(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Edits of the client's body, and the endings. O(edits), and O(strings) if there are endings."""
        left = dict(self.endings)
        if not left:
            return tuple(edits)
        done = [
            SetText(edit.pointer, edit.text + left.pop(edit.pointer, "")) if isinstance(edit, SetText) else edit
            for edit in edits
        ]
        texts = {segment.pointer: segment.text for segment in self.prompt.segments()}
        return (*done, *(SetText(pointer, texts[pointer] + words) for pointer, words in left.items()))


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the rules for text give."""

    forms: dict[Pointer, Form]
    changes: tuple[Change, ...] = ()
    told: Mapping[int, str] = field(default_factory=dict)
    links: Links | None = None


class Conversations:
    """Those whose front was made steady, the least recently used out first. All O(1)."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, conversation: bytes) -> bool:
        return conversation in self._known

    def add(self, conversation: bytes) -> None:
        """The engine has had its steady front."""
        self._known[conversation] = None
        self._known.move_to_end(conversation)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


class Steady:
    """Applies the rules that are on. ``treat`` changes nothing but what is least recently used.

    Args:
        to_anthropic: whether the upstream is Anthropic.
        orders: in which conversations have their tools.
        known: conversations that have had a steady front.
    """

    def __init__(
        self,
        rules: VolatileRules,
        *,
        to_anthropic: bool,
        orders: ToolOrders,
        known: Conversations,
        templates: Templates = DEFAULT_TEMPLATES,
    ) -> None:
        self.rules = rules
        self._to_anthropic = to_anthropic
        self._orders = orders
        self._known = known
        self._templates = templates

    def treat(
        self, prompt: Prompt, links: Links, conversation: bytes, excluded: Excluded, times: Times | None
    ) -> Steadied:
        """The prompt with a steady front. O(system text), and O(1) for each user message where times are rounded.

        Args:
            links: of the client's messages.
            conversation: under which the order of its tools is kept.
            times: what was told before; ``None``: what is told now would be lost in the next turn, so that no time is
                rounded.
        """
        ordered = self._orders.plan(prompt, conversation) if self.rules.tool_order else _AS_GIVEN
        texts = self._texts(prompt, links, excluded, times)
        places = {index: last_text(prompt.messages[index]) for index in texts.told}
        endings = {place.pointer: texts.told[index] for index, place in places.items() if place is not None}

        def learn() -> None:
            self._known.add(conversation)
            self._orders.remember(conversation, ordered.names)
            if times is not None and texts.links is not None:
                times.record(texts.links, texts.told)

        tools = None if ordered.edit is None else ordered.edit.order
        changes = (*texts.changes, *ordered.changes)
        return Steadied(_settled(prompt, texts.forms, tools), texts.forms, tools, endings, changes, learn)

    def _texts(self, prompt: Prompt, links: Links, excluded: Excluded, times: Times | None) -> _Texts:
        if self.rules.clock == "round" and times is not None:
            return self._rounded(prompt, links, excluded, times)
        rules = replace(self.rules, clock="off") if self.rules.clock == "round" else self.rules
        made = self._made(prompt, rules, excluded, stated=False)
        return _Texts(_forms(made), made.changes)

    def _rounded(self, prompt: Prompt, links: Links, excluded: Excluded, times: Times) -> _Texts:
        """What was told is known by the system text without times.

        In a tool loop the newest user message keeps the time that was told in it. If none was, it was sent behind other
        system text, or we have forgotten it: what follows has to be read anew anyway, so the time is told there now.
        """
        loop = prompt.in_tool_loop
        made = self._made(prompt, self.rules, excluded, stated=loop)
        known = links.over(_settled(prompt, _forms(made), None))
        users = [i for i, message in enumerate(prompt.messages) if message.role == "user"]
        told = times.told(known, users)
        if not loop or prompt.newest_user not in told:
            made = self._made(replace(prompt, in_tool_loop=False), self.rules, excluded, stated=False) if loop else made
            told.pop(prompt.newest_user, None)
            if made.newest is not None:
                told[prompt.newest_user] = made.newest[1]
        return _Texts(_forms(made), made.changes, told, known)

    def _made(self, prompt: Prompt, rules: VolatileRules, excluded: Excluded, *, stated: bool) -> Treatment:
        return treat(
            prompt,
            rules,
            to_anthropic=self._to_anthropic,
            stated=stated,
            excluded=excluded,
            templates=self._templates,
        )


def _forms(made: Treatment) -> dict[Pointer, Form]:
    return {form.pointer: form.form for form in made.forms}


def _settled(prompt: Prompt, forms: Mapping[Pointer, Form], tools: Sequence[int] | None) -> Prompt:
    texts = {s.pointer: apply(forms[s.pointer], s.text) for s in prompt.segments() if s.pointer in forms}
    return rewritten(prompt, texts, tools)
