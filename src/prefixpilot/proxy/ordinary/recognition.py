"""Which recognisers look at a string, and what they have met so far: kept for each client, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from threading import RLock
from typing import Final, cast

from prefixpilot.apis.base import Segment
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.formats.base import Recogniser, Region
from prefixpilot.formats.catalogue import RECOGNISERS, named, regions
from prefixpilot.formats.edges import EdgeStore
from prefixpilot.formats.weak import WeakRecogniser, learn
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.ordinary.passages import Recognise
from prefixpilot.proxy.ordinary.settings import EVERYTHING, OrdinarySettings

MAX_STORES: Final = 256
MAX_TEXTS: Final = 1 << 19
_OUTSIDE: Final = ("documents",)


class Recognition:
    """The recognisers that are on, and the edges that they have met: a store for each tenant and credential, so that
    what one client sends proves nothing about the documents of another.

    The store that was used longest ago goes first, when there are more than ``MAX_STORES`` or they hold more than
    ``MAX_TEXTS`` texts (about 160 MB). Then a client proves its joints anew.

    Args:
        recognisers: in the order in which they count.
        lock: held for every look into a store.
    """

    def __init__(self, recognisers: Sequence[Recogniser], lock: RLock) -> None:
        self.recognisers = tuple(recognisers)
        self._learning = tuple(one for one in self.recognisers if isinstance(one, WeakRecogniser))
        self._lock = lock
        self._edges: OrderedDict[bytes, EdgeStore] = OrderedDict()

    @classmethod
    def of(cls, settings: OrdinarySettings, lock: RLock) -> Recognition:
        """As the settings say: the user's own first.

        Raises:
            ConfigError: a name that no recogniser has, or one that cannot be imported.
        """
        own = tuple(map(imported, settings.recognisers))
        if EVERYTHING in settings.recognise:
            return cls((*own, *RECOGNISERS), lock)
        names = [name for name in settings.recognise if name not in {*_OUTSIDE, *(one.name for one in own)}]
        return cls((*(one for one in own if one.name in settings.recognise), *named(names)), lock)

    def check(self, names: tuple[str, ...]) -> None:
        """Raise ``InvalidRequestError`` for a name that a client gives and that no recogniser has."""
        if not names:
            return
        known = {EVERYTHING, *_OUTSIDE, *(one.name for one in (*self.recognisers, *RECOGNISERS))}
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]!r}?" if near else "use off, all, or names of formats"
                raise InvalidRequestError("X-PrefixPilot-Recognise", f"names {name!r}, which is no format", remedy)

    def recognise(self, who: bytes, names: tuple[str, ...] | None) -> Recognise:
        """What finds regions for a client (digest of tenant and credential): with these recognisers only, or with all
        that are on."""
        chosen = self.chosen(names)
        edges = self._store(who)

        def find(segment: Segment) -> tuple[Region, ...]:
            return regions(segment, chosen, edges)

        return find

    def learn(self, who: bytes, segments: Iterable[Segment]) -> None:
        """An engine has had these strings of a client's."""
        learn(segments, self._learning, self._store(who))

    def clear(self) -> None:
        """Forget the edges of all clients."""
        with self._lock:
            self._edges.clear()

    def chosen(self, names: tuple[str, ...] | None) -> tuple[Recogniser, ...]:
        """Those of these names; ``None``: all that are on."""
        if names is None or EVERYTHING in names:
            return self.recognisers
        return tuple(recogniser for recogniser in self.recognisers if recogniser.name in names)

    def _store(self, who: bytes) -> EdgeStore:
        with self._lock:
            if who not in self._edges:
                self._edges[who] = EdgeStore()
            store = self._edges[who]
            self._edges.move_to_end(who)
            while len(self._edges) > MAX_STORES or (len(self._edges) > 1 and self._texts() > MAX_TEXTS):
                self._edges.popitem(last=False)
        return guarded(store, self._lock)

    def _texts(self) -> int:
        """That all stores remember. O(stores)."""
        return sum(map(len, self._edges.values()))


def imported(path: str) -> Recogniser:
    """A user's own recogniser, from ``package.module:name``.

    Raises:
        ConfigError: it cannot be imported, or is no recogniser.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError("recognisers", f"has {path!r} ({error})", "write package.module:name") from error
    if not isinstance(getattr(found, "name", None), str) or not callable(getattr(found, "find", None)):
        raise ConfigError("recognisers", f"has {path!r}, without name or find", "see prefixpilot.formats.base")
    return cast(Recogniser, found)
