"""From a plan to the text that stands in the prompt. Wording comes from :mod:`prefixpilot.annotations`."""

from __future__ import annotations

from collections.abc import Iterable
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
    return "".join(block_parts((planned,), templates))


def block_parts(blocks: Iterable[PlannedBlock], templates: Templates) -> list[str]:
    """What blocks are made of, three parts each: its heading and its text, or a location annotation and nothing; then a
    blank line. Raises as :func:`render_block`."""
    parts: list[str] = []
    for planned in blocks:
        block = planned.block
        if planned.location_annotation is not None:
            parts += (planned.location_annotation, "", PARAGRAPH)
        elif block.text is None:
            raise InvalidRequestError(
                f"blocks[{planned.position}].text", "is missing", "give every block a text, or render the ids yourself"
            )
        elif block.title is None:
            parts += (_line(planned.label, templates.label), block.text, PARAGRAPH)
        else:
            parts += (heading(planned, templates), block.text, PARAGRAPH)
    return parts


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
    parts = block_parts(plan.blocks, plan.templates)
    if plan.order_annotation is not None:
        parts.append(plan.order_annotation)
    elif parts:
        parts.pop()
    return "".join(parts)
