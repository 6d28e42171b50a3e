"""The order of the units of a region, planned as the context of a request. Pure but for the pilot's index.

Blocks are whole units, label and wrapper included, since the engine caches what stands in the prompt. Units that have
become annotations go behind those in full, so that what they point to stands before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates, estimate_annotation_tokens, ranking_annotation
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock, Plan, Request, RequestId, TenantId
from prefixpilot.formats.base import Region, Unit
from prefixpilot.pieces import Span
from prefixpilot.proxy.ordinary import notes
from prefixpilot.proxy.ordinary.series import is_series
from prefixpilot.proxy.ordinary.settings import OrdinarySettings


class Arranged(NamedTuple):
    """An order of a region.

    Attributes:
        order: index of the unit at each place.
        annotation: the order annotation that it needs, with the white space that goes in front of it; empty if none.
        plan: what to learn when the engine has it; ``None`` if nothing was planned.
        why: the order stays; empty if it does not.
    """

    order: tuple[int, ...]
    annotation: str = ""
    plan: Plan | None = None
    why: str = ""


class Orders(NamedTuple):
    """What is asked of a pilot.

    Attributes:
        propose: plans a region.
        kept: tokens that it would have cached in the given order.
    """

    propose: Callable[[Request], Plan]
    kept: Callable[[Request], int]


class Route(NamedTuple):
    """What a region is planned for: see :class:`prefixpilot.core.Request`."""

    request_id: RequestId
    tenant: TenantId
    scope: str
    constraints: Constraints = UNCONSTRAINED


def arrange(
    region: Region,
    text: str,
    repeated: Sequence[bool],
    route: Callable[[], Route],
    orders: Orders,
    settings: OrdinarySettings,
    count: Callable[[str], int],
    templates: Templates = DEFAULT_TEMPLATES,
) -> Arranged:
    """The order in which the units of a region are sent. O(one plan).

    Moving costs nothing, an order annotation does: it is added only if it costs less than the move is predicted to save
    beyond the given order, else the order stays.

    Args:
        text: the string that it stands in.
        route: asked for once all else lets the region move; with a bound on displacement, a region with annotations
            keeps its order.
        region: a movable one.
        repeated: of each unit, whether it has become an annotation.
    """
    given = tuple(range(len(region.units)))
    full = [i for i in given if not repeated[i]]
    texts = [_cut(text, region.units[i].span) for i in full]
    tokens = sum(map(count, texts))
    if len(full) < 2 or tokens < settings.min_region_tokens or is_series(region, text):
        few, short = len(full) < 2, tokens < settings.min_region_tokens
        why = notes.FEW if few else notes.below(tokens, settings.min_region_tokens) if short else notes.SERIES
        return Arranged(given, why=why)
    planned = route()
    if planned.constraints is not UNCONSTRAINED and any(repeated):
        return Arranged(given, why=notes.BOUND)
    asked = request(texts, planned)
    plan = orders.propose(asked)
    order = (*(full[position] for position in plan.order), *(i for i in given if repeated[i]))
    note = "" if region.ranked else _ranking(region, text, order, settings.annotate, templates)
    cost = estimate_annotation_tokens(note, templates) if note else 0
    saved = _saved_by_move(plan, asked, orders) if note else 0
    if note is None or (note and cost >= saved):
        why = notes.FORGED if note is None else notes.costly(cost, saved)
        return Arranged(given, "", None if any(repeated) else _as_given(_costing(plan, cost)), why)
    why = notes.SAME if order == given else ""
    return Arranged(order, note and _joint(region, text) + note, _costing(plan, cost), why)


def _saved_by_move(plan: Plan, asked: Request, orders: Orders) -> int:
    """Tokens that the order is predicted to save beyond the given one, its annotation not counted."""
    if plan.gain is not None:
        return plan.gain + plan.annotation_tokens
    cached = plan.predicted_cached_tokens or 0
    return cached - orders.kept(asked) if cached else 0


def request(texts: Sequence[str], route: Route) -> Request:
    """The units of a region as the context of a request."""
    blocks = tuple(ContextBlock(text=text) for text in texts)
    return Request(blocks, route.request_id, tenant=route.tenant, scope=route.scope, constraints=route.constraints)


def _ranking(region: Region, text: str, order: Sequence[int], most: int, templates: Templates) -> str | None:
    """The order annotation in the units' own labels; empty if it says nothing, or labels do not tell them apart.

    ``None``: a document has forged one of the labels, so that nothing that moves could be told.
    """
    labels = [unit.label for unit in region.units]
    named = [label for label in labels if label]
    if not most or len(named) < len(labels) or len(set(named)) < len(labels):
        return ""
    top = range(min(most, len(order)))
    if all(order[place] == place for place in top):
        return ""
    if any(_is_forged(region.units[i], text) for i in top):
        return None
    return ranking_annotation([named[i] for i in top], templates, rest=len(order) > most)


def _is_forged(unit: Unit, text: str) -> bool:
    """Whether all that stands in a unit before its body, label included, stands elsewhere in the string too."""
    head = _cut(text, Span(unit.span.start, unit.body.start)).strip()
    return bool(head) and text.count(head) > 1


def _joint(region: Region, text: str) -> str:
    """White space as between the last two units; a line break where something else stands there."""
    joint = text[region.units[-2].span.end : region.units[-1].span.start]
    return joint if joint and not joint.strip() else "\n"


def _costing(plan: Plan, cost: int) -> Plan:
    """The plan with our annotation in the place of its own."""
    gain = None if plan.gain is None else plan.gain + plan.annotation_tokens - cost
    return replace(plan, order_annotation=None, annotation_tokens=cost, gain=gain)


def _as_given(plan: Plan) -> Plan:
    """What is learnt where the order stays as it was: that it was sent so. Nothing is predicted of it."""
    blocks = tuple(b._replace(location_annotation=None) for b in sorted(plan.blocks, key=attrgetter("position")))
    return replace(plan, blocks=blocks, annotation_tokens=0, prefix_len=0, predicted_cached_tokens=None)


def _cut(text: str, span: Span) -> str:
    return text[span.start : span.end]
