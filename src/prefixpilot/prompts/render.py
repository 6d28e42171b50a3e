"""From a plan to the text that stands in the prompt. Wording comes from :mod:`prefixpilot.annotations`."""

from __future__ import annotations

from functools import lru_cache

from prefixpilot.annotations import Templates, written_label
from prefixpilot.core import Plan, PlannedBlock
from prefixpilot.errors import InvalidRequestError

PARAGRAPH = "\n\n"


def render_block(planned: PlannedBlock, templates: Templates) -> str:
    """One block as a paragraph: its label and text, or the location annotation that stands in its place.

    Raises:
        InvalidRequestError: the block has no text.
    """
    return "".join(paragraph_parts(planned, templates))


def paragraph_parts(planned: PlannedBlock, templates: Templates) -> tuple[str, ...]:
    """What :func:`render_block` joins. Raises as that."""
    if planned.location_annotation is not None:
        return (planned.location_annotation,)
    block = planned.block
    if block.text is None:
        raise InvalidRequestError(
            f"blocks[{planned.position}].text", "is missing", "give every block a text, or render the ids yourself"
        )
    return heading(planned, templates), block.text


def heading(planned: PlannedBlock, templates: Templates) -> str:
    """What stands in front of the text of a block that stands in full: its label, its title, a line break."""
    if planned.block.title is None:
        return _line(planned.label, templates.label)
    return f"{written_label(planned.label, templates)} {planned.block.title}\n"


@lru_cache(maxsize=4096)
def _line(name: str, label: str) -> str:
    """A line that has nothing but a label. The same few again and again."""
    return written_label(name, Templates(label=label)) + "\n"


def render_blocks(plan: Plan) -> str:
    """All blocks of a plan in prompt order, then its order annotation, a blank line between them and none at the end.

    Labels are in the wording of ``plan.templates``. The same leading blocks give the same leading bytes, whatever
    follows. The question goes behind a blank line.
    """
    parts: list[str] = []
    for planned in plan.blocks:
        parts += paragraph_parts(planned, plan.templates)
        parts.append(PARAGRAPH)
    if plan.order_annotation is not None:
        parts.append(plan.order_annotation)
    elif parts:
        parts.pop()
    return "".join(parts)
