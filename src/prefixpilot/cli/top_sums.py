"""What the caches of several engines behind one proxy come to together, out of its ``/stats``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_DEPTH: Final = 3
"""Objects in objects that are added up: predictions, their basis, its verdicts."""
_NAMES: Final = ("tenant", "api", "model")


def caches_together(stats: Mapping[str, Any]) -> dict[str, Any]:
    """``engine_cache``, and of several engines the sums over that of each. Anything may be missing. O(size).

    >>> one, other = ({"engine_cache": {"pages": n, "causes": {"evicted": n}}} for n in (2, 3))
    >>> both = caches_together({"engine_cache": {"state": "EXACT"}, "engines": [one, other]})
    >>> both["state"], both["pages"], both["causes"]
    ('EXACT', 5, {'evicted': 5})
    """
    every = [stats, *_objects(stats.get("engines"))]
    caches = [cache for cache in (each.get("engine_cache") for each in every) if isinstance(cache, Mapping)]
    summed = ("predictions", "causes", "pages", "contexts")
    return {
        **(caches[0] if caches else {}),
        **{name: _added([cache.get(name) for cache in caches], _DEPTH) for name in summed},
        "sources": [source for cache in caches for source in _objects(cache.get("sources"))],
        "routes": _routes(route for cache in caches for route in _objects(cache.get("routes"))),
    }


def _routes(routes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One of each name, in the order in which they come."""
    by_name: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for route in routes:
        by_name.setdefault(tuple(str(route.get(name)) for name in _NAMES), []).append(route)
    return [same[0] if len(same) == 1 else _route(same) for same in by_name.values()]


def _route(same: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    together: dict[str, Any] = _added(same, _DEPTH)
    counts: list[Any] = [together.get(name) for name in ("cached_tokens", "prompt_tokens")]
    cached, prompt = (count if _is_number(count) else 0 for count in counts)
    return {**together, "hit_rate": round(cached / prompt, 4) if prompt else None}


def _added(values: Sequence[Any], depth: int) -> Any:
    """Sums of numbers, by name where they are named; of anything else the first. ``None`` is unknown, and not zero."""
    if depth and any(isinstance(value, Mapping) for value in values):
        tables = [value for value in values if isinstance(value, Mapping)]
        names = dict.fromkeys(name for table in tables for name in table)
        return {name: _added([table.get(name) for table in tables], depth - 1) for name in names}
    numbers = [value for value in values if _is_number(value)]
    return sum(numbers) if numbers else next((value for value in values if value is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
