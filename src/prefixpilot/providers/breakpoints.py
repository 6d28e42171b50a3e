"""Cache marks (``cache_control``) for Anthropic's Messages API: counted, and set where a client sets none of its own.

Opt-in. Without a mark nothing is cached there. A mark writes an entry at its end, and a later request finds entries by
looking back from its own marks, so a mark belongs on the last part that stays the same. Marks themselves cost nothing;
written tokens cost more than plain ones. Documents of the provider: ``limits.toml``.

What a mark changes: one member more on a part. Where a string has to hold one (``"system": "..."``,
``"content": "..."``), the string becomes a list with one text part, which the API documents as the same prompt; the
bytes of the body differ, the prompt does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from prefixpilot.apis.base import Pointer
from prefixpilot.errors import ConfigError
from prefixpilot.jsontext import SetMember
from prefixpilot.providers.limits import CacheLimits

Ttl = Literal["5m", "1h"]

DEFAULT_BREAKPOINTS: Final = 4
"""Marks that a request may carry where the table does not say."""

_MARK = "cache_control"
_OPAQUE = frozenset({"input", "input_schema", "input_examples"})
"""Members whose content is the client's own data: a key in there is no mark."""
_MARKABLE = frozenset({"text", "image", "document", "search_result", "tool_result", "container_upload"})
"""Parts of a user message that may hold one. Never thinking, and nothing of an assistant's."""


class Mark(NamedTuple):
    """A mark that a body carries: the pointer of what holds it, and its TTL (``5m`` where it names none)."""

    pointer: Pointer
    ttl: str


class Census(NamedTuple):
    """All marks of a body, in the order in which the provider reads them.

    Attributes:
        marks: on tools, system parts and parts of messages, nested ones too.
        automatic: the body asks for automatic caching: one mark that the provider sets itself.
    """

    marks: tuple[Mark, ...]
    automatic: bool

    @property
    def total(self) -> int:
        """What counts against the provider's limit."""
        return len(self.marks) + self.automatic


@dataclass(frozen=True, slots=True)
class BreakpointSettings:
    """Where marks are set, and for how long.

    Attributes:
        tools: at the end of the tool definitions.
        system: at the end of the system text.
        messages: at the end of the newest message that will be sent again.
        stable_ttl: of the marks on tools and system.
        message_ttl: of the marks on messages. The provider wants longer ones first: ``1h`` needs ``1h`` before it.
    """

    tools: bool = True
    system: bool = True
    messages: bool = True
    stable_ttl: Ttl = "5m"
    message_ttl: Ttl = "5m"

    def __post_init__(self) -> None:
        for name in ("tools", "system", "messages"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use true or false")
        for name in ("stable_ttl", "message_ttl"):
            if getattr(self, name) not in ("5m", "1h"):
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use 5m or 1h")
        if (self.stable_ttl, self.message_ttl) == ("5m", "1h"):
            raise ConfigError("message_ttl", "is longer than stable_ttl", "a longer TTL has to come first")


class BreakpointPlan(NamedTuple):
    """The marks to set.

    Attributes:
        edits: on the client's body, newest position first.
        rewritten: pointers of strings that ``edits`` replace by a list of parts: an edit of the text of one of these
            must not be made as well, its new text was taken from ``texts``.
        reason: why there is none; empty if there is one.
    """

    edits: tuple[SetMember, ...]
    rewritten: frozenset[Pointer]
    reason: str


def census(body: Mapping[str, Any]) -> Census:
    """Counts the marks of a Messages body. O(body); never raises."""
    marks: list[Mark] = []
    stack: list[tuple[Pointer, Any]] = [((key,), body.get(key)) for key in ("messages", "system", "tools")]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, dict):
            control = value.get(_MARK)
            if control is not None:
                marks.append(Mark(pointer, _ttl(control)))
            inner = [(key, item) for key, item in value.items() if key not in _OPAQUE and key != _MARK]
            stack.extend(((*pointer, key), item) for key, item in reversed(inner) if isinstance(item, dict | list))
        elif isinstance(value, list):
            stack.extend(((*pointer, index), value[index]) for index in reversed(range(len(value))))
    return Census(tuple(marks), automatic=body.get(_MARK) is not None)


def _ttl(control: Any) -> str:
    ttl = control.get("ttl") if isinstance(control, dict) else None
    return ttl if isinstance(ttl, str) else "5m"


def plan_breakpoints(
    body: Mapping[str, Any],
    limits: CacheLimits,
    settings: BreakpointSettings,
    count: Callable[[str], int],
    *,
    texts: Mapping[Pointer, str] | None = None,
    stable: int | None = None,
) -> BreakpointPlan:
    """Marks for a body of the Messages API that has none; none if the client manages its own. O(body).

    Set, newest first: the end of the newest stable user message; the end of the one before the last assistant message,
    where the request before this one had its mark, if that lies further back than the provider looks; the end of the
    system text; the end of the tools. A position whose prefix is shorter than the model's minimum gets none.

    Args:
        limits: of the model that the body names.
        count: length of a text in tokens; images and other data count as nothing, so that a prefix is rather
            underestimated.
        texts: what will stand in the place of the body's strings, by pointer.
        stable: how many of the first messages the client will send again as they are. A caller that knows of context
            pasted anew in each turn says so here: a mark behind that pays for nothing. ``None``: all of them if the
            body shows a conversation (an answer, or tools), else none: a lone question is written for nobody.
    """
    found = census(body)
    if found.total:
        return BreakpointPlan((), frozenset(), "the client sets its own marks")
    places = _Places(body, texts or {}, count)
    wanted: list[tuple[Pointer, Ttl]] = []
    if settings.messages:
        wanted += [(place, settings.message_ttl) for place in places.messages(stable, limits.lookback or 0)]
    if settings.system:
        wanted += [(place, settings.stable_ttl) for place in places.system()]
    if settings.tools:
        wanted += [(place, settings.stable_ttl) for place in places.tools()]
    long_enough = [(place, ttl) for place, ttl in wanted if places.prefix(place) >= (limits.minimum_tokens or 0)]
    chosen = long_enough[: limits.max_breakpoints or DEFAULT_BREAKPOINTS]
    if not chosen:
        reason = "no stable prefix is long enough" if wanted else "nothing can hold a mark"
        return BreakpointPlan((), frozenset(), reason)
    edits = tuple(places.edit(place, ttl) for place, ttl in chosen)
    rewritten = frozenset(place for place, _ in chosen if isinstance(places.at(place), str))
    return BreakpointPlan(edits, rewritten, "")


class _Places:
    """Where marks could stand in one body, and how many tokens stand in front of each."""

    def __init__(self, body: Mapping[str, Any], texts: Mapping[Pointer, str], count: Callable[[str], int]) -> None:
        self._body = body
        self._texts = texts
        self._count = count
        self._prefixes = self._measure()

    def at(self, pointer: Pointer) -> Any:
        value: Any = self._body
        for key in pointer:
            value = value[key]
        return value

    def prefix(self, pointer: Pointer) -> int:
        """Tokens up to the end of what stands at ``pointer``."""
        return self._prefixes[pointer]

    def edit(self, pointer: Pointer, ttl: Ttl) -> SetMember:
        control = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
        value = self.at(pointer)
        if isinstance(value, str):
            part = {"type": "text", "text": self._texts.get(pointer, value), _MARK: control}
            return SetMember(pointer[:-1], str(pointer[-1]), [part])
        return SetMember(pointer, _MARK, control)

    def tools(self) -> list[Pointer]:
        tools = self._body.get("tools")
        if not isinstance(tools, list):
            return []
        # A deferred tool may not hold a mark, and is not part of the prefix.
        able = [i for i, tool in enumerate(tools) if isinstance(tool, dict) and tool.get("defer_loading") is not True]
        return [("tools", able[-1])] if able else []

    def system(self) -> list[Pointer]:
        return self._last(("system",), self._body.get("system"), frozenset({"text"}))

    def messages(self, stable: int | None, lookback: int) -> list[Pointer]:
        """The end of the newest stable user message, and that of the turn before it if it lies too far back."""
        messages = self._body.get("messages")
        if not isinstance(messages, list):
            return []
        end = self._expected(messages) if stable is None else min(max(stable, 0), len(messages))
        newest = self._newest(messages, end)
        if newest is None:
            return []
        place = self._last_of(messages, newest)
        answered = [i for i in range(newest) if _role(messages[i]) == "assistant"]
        before = self._newest(messages, answered[-1]) if answered else None
        if before is None or sum(_parts(message) for message in messages[before + 1 : newest + 1]) <= lookback:
            return place
        return place + self._last_of(messages, before)

    def _expected(self, messages: list[Any]) -> int:
        goes_on = bool(self._body.get("tools")) or any(_role(message) == "assistant" for message in messages)
        return len(messages) if goes_on else 0

    def _newest(self, messages: list[Any], end: int) -> int | None:
        """Index of the newest user message before ``end`` that can hold a mark."""
        able = (i for i in reversed(range(end)) if _role(messages[i]) == "user" and self._last_of(messages, i))
        return next(able, None)

    def _last_of(self, messages: list[Any], index: int) -> list[Pointer]:
        return self._last(("messages", index, "content"), messages[index].get("content"), _MARKABLE)

    def _last(self, pointer: Pointer, content: Any, kinds: frozenset[str]) -> list[Pointer]:
        """The last part of a content that can hold a mark; the string itself if it is one."""
        if isinstance(content, str):
            return [pointer] if self._texts.get(pointer, content).strip() else []
        if not isinstance(content, list):
            return []
        able = (i for i in reversed(range(len(content))) if self._markable((*pointer, i), content[i], kinds))
        return [(*pointer, i) for i in (next(able, None),) if i is not None]

    def _markable(self, pointer: Pointer, part: Any, kinds: frozenset[str]) -> bool:
        if not isinstance(part, dict) or part.get("type") not in kinds:
            return False
        if part["type"] != "text":
            return True
        text = self._texts.get((*pointer, "text"), part.get("text"))
        return isinstance(text, str) and bool(text.strip())

    def _measure(self) -> dict[Pointer, int]:
        """Tokens up to the end of each tool, each part and each string that is a content, in reading order."""
        ends: dict[Pointer, int] = {}
        total = 0
        tools = self._body.get("tools")
        for i, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict) and tool.get("defer_loading") is not True:
                total += self._count(json.dumps(tool, ensure_ascii=False))
            ends["tools", i] = total
        contents: list[tuple[Pointer, Any]] = [(("system",), self._body.get("system"))]
        messages = self._body.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                contents.append((("messages", i, "content"), message.get("content")))
        for pointer, content in contents:
            for i, part in enumerate(content if isinstance(content, list) else ()):
                total += self._text_tokens((*pointer, i), part)
                ends[*pointer, i] = total
            if isinstance(content, str):
                total += self._text_tokens(pointer, content)
            ends[pointer] = total
        return ends

    def _text_tokens(self, pointer: Pointer, part: Any) -> int:
        """Tokens of the text that a part, or a string, gives the model."""
        total = 0
        stack = [(pointer, part)]
        while stack:
            place, value = stack.pop()
            if isinstance(value, str):
                total += self._count(self._texts.get(place, value))
            elif isinstance(value, list):
                stack.extend(((*place, i), item) for i, item in enumerate(value))
            elif isinstance(value, dict):
                stack.extend(((*place, key), value[key]) for key in ("text", "content") if key in value)
                if "input" in value:
                    total += self._count(json.dumps(value["input"], ensure_ascii=False))
        return total


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _parts(message: Any) -> int:
    """Content blocks of a message. Runs of tool results count one each here, so that the distance is overestimated."""
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 1
