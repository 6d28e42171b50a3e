"""What is done to every kind of request, with blocks or without: its front is kept steady, a provider gets its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import RLock

from prefixpilot.apis.base import Prompt
from prefixpilot.formats.base import Region
from prefixpilot.jsontext import Edit
from prefixpilot.pieces import Span
from prefixpilot.providers.cache_key import KeyShards
from prefixpilot.proxy.call import Options
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.hosted import Hosted
from prefixpilot.proxy.ordinary.chain import Links, joined
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.told import Times
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steady import Conversations, Excluded, Steadied, Steady
from prefixpilot.volatile.base import lines
from prefixpilot.volatile.memory import find_sections
from prefixpilot.volatile.rules import system_texts
from prefixpilot.volatile.tool_order import ToolOrders
from prefixpilot.volatile.zones import zones


@dataclass(frozen=True, slots=True)
class Prefaced:
    """A request with a steady front.

    Attributes:
        steadied: its prompt.
        key: edits that set a cache key.
        edits: all of it as edits of the client's body, but for endings.
    """

    steadied: Steadied
    key: tuple[Edit, ...] = ()
    edits: tuple[Edit, ...] = ()


class Preface:
    """Of requests in mode on. What is held out goes as it came, but for a front that was steady before.

    Args:
        recognition: finds documents in system text, which no rule reads.
    """

    def __init__(
        self, steady: Steady, hosted: Hosted, orders: ToolOrders, known: Conversations, recognition: Recognition
    ) -> None:
        self._steady = steady
        self.hosted = hosted
        self._orders = orders
        self._known = known
        self._recognition = recognition

    @classmethod
    def of(cls, settings: ProxySettings, recognition: Recognition, lock: RLock, clock: Callable[[], float]) -> Preface:
        """As the settings say."""
        orders = guarded(ToolOrders(), lock)
        shards = guarded(KeyShards(settings.providers.key_rate), lock)
        hosted = Hosted(settings.providers, settings.engine, shards, clock)
        known = guarded(Conversations(), lock)
        steady = Steady(settings.volatile, to_anthropic=hosted.provider == "anthropic", orders=orders, known=known)
        return cls(steady, hosted, orders, known, recognition)

    @property
    def on(self) -> bool:
        """Whether anything is switched on."""
        return self._steady.rules.any or self.hosted.sets_key or self.hosted.sets_marks

    def treat(self, prompt: Prompt, options: Options, times: Times | None = None) -> Prefaced:
        """What is done to a request. O(bytes of it) if anything is switched on, else O(1)."""
        if options.mode != "on" or not (self._steady.rules.any or self.hosted.sets_key):
            return Prefaced(Steadied(prompt))
        links = Links.of(prompt)
        conversation = joined([who(options), _opening(options, links)])
        if options.held_out and conversation not in self._known:
            return Prefaced(Steadied(prompt))
        excluded = self._excluded(prompt, options)
        steadied = self._steady.treat(prompt, links, conversation, excluded, times)
        if options.held_out:
            return Prefaced(steadied, edits=steadied.edits(prompt))
        counted = not options.explain
        key = self.hosted.key(prompt, steadied.prompt, excluded, conversation, options.tenant, counted=counted)
        return Prefaced(steadied, key, (*steadied.edits(prompt), *key))

    def marks(self, api: str, options: Options) -> bool:
        """Whether a request to an API may get a provider's marks."""
        return self.hosted.sets_marks and api == "messages" and options.mode == "on" and not options.held_out

    def clear(self) -> None:
        """Forget conversations, orders of tools, rates of keys, and the edges of formats."""
        self._orders.clear()
        self._known.clear()
        self.hosted.clear()
        self._recognition.clear()

    def _excluded(self, prompt: Prompt, options: Options) -> Excluded:
        recognise = self._recognition.recognise(who(options), options.recognise)
        found = ((segment, recognise(segment)) for segment in system_texts(prompt))
        memory = self._steady.rules.memory
        return {
            segment.pointer: _units(regions, _sections(segment.text) if memory else ())
            for segment, regions in found
            if regions
        }


def _opening(options: Options, links: Links) -> bytes:
    """What all turns of a conversation have in common."""
    return links.first if options.conversation is None else blake2b(options.conversation.encode()).digest()


def _units(regions: Iterable[Region], sections: Sequence[Span]) -> list[Span]:
    """Units of all regions but for those in a section that moves as a whole."""
    spans = (tuple(unit.span for unit in region.units) for region in regions)
    return [
        span
        for units in spans
        if not any(start <= units[0].start and units[-1].end <= end for start, end in sections)
        for span in units
    ]


def _sections(text: str) -> list[Span]:
    """Sections of memories: what a recogniser finds in them are the memories."""
    all_lines = tuple(lines(text))
    found = find_sections(text, all_lines, zones(text, all_lines, (False,) * len(all_lines)))
    return [Span(all_lines[s.first].content.start, all_lines[s.end - 1].content.end) for s in found]


def who(options: Options) -> bytes:
    """Digest of tenant and credential: a sender."""
    return blake2b(f"{options.tenant}\0{options.credential}".encode(), digest_size=16).digest()
