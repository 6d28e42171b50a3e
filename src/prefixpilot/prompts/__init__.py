"""Prompts: from plans to text, and bodies that carry context blocks."""

from prefixpilot.prompts.assemble import (
    Columns,
    assemble,
    assemble_in_full,
    full_columns,
    lengths_of,
    new_plan,
    relevance_annotation,
    texts_of,
)
from prefixpilot.prompts.render import PARAGRAPH, render_block, render_blocks

__all__ = [
    "Columns",
    "PARAGRAPH",
    "assemble",
    "assemble_in_full",
    "full_columns",
    "lengths_of",
    "new_plan",
    "relevance_annotation",
    "render_block",
    "render_blocks",
    "texts_of",
]
