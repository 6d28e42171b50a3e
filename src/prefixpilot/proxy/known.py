"""Texts of blocks that came before: what was found of them is not found a second time. In memory only."""

from __future__ import annotations

from functools import partial
from typing import Final

from prefixpilot.blocks import KnownBlocks
from prefixpilot.jsontext import KnownElements
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import parse_request
from prefixpilot.proxy.escaping import Placing
from prefixpilot.proxy.steps import Parse

KNOWN_BYTES: Final = 32 << 20
"""Of each of the three. They hold the same strings, so that all of them take little more than one."""


class KnownTexts:
    """What of ``context_blocks`` is kept for the next request, whoever sends it. Bounded; threads may share it.

    Nobody can tell but by time whether a text came before: each is looked up by all of its characters.

    Attributes:
        elements: how they are written in a body, and what that says.
        blocks: the blocks made of them, with their hashes.
        placing: how they are written in what is sent.
    """

    def __init__(self, max_bytes: int = KNOWN_BYTES) -> None:
        self.elements = KnownElements(max_bytes, (FIELD,))
        self.blocks = KnownBlocks(max_bytes)
        self.placing = Placing(max_bytes)

    @property
    def parse(self) -> Parse:
        """:func:`prefixpilot.prompts.request.parse_request`, with the blocks that are known."""
        return partial(parse_request, block_of=self.blocks.of)

    def clear(self) -> None:
        """Forget all."""
        for each in (self.elements, self.blocks, self.placing):
            each.clear()
