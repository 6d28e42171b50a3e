"""Prompts: from plans to text, and bodies that carry context blocks."""

from prefixpilot.prompts.assemble import assemble, assemble_in_full, relevance_annotation
from prefixpilot.prompts.render import PARAGRAPH, render_block, render_blocks

__all__ = ["PARAGRAPH", "assemble", "assemble_in_full", "relevance_annotation", "render_block", "render_blocks"]
