"""The prompt around the blocks: what a chat template, labels and a question add to it, in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from prefixpilot.annotations import Templates, estimate_annotation_tokens
from prefixpilot.core import BlockId, Plan, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment

LABEL_TOKENS: Final = 7
"""Of ``[Doc 3]`` and the blank line behind a block: what common tokenizers make of them."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What stands in a prompt beside its blocks and annotations. Lengths in tokens.

    Attributes:
        head_tokens: in front of the first block, the same in every prompt: template, system text.
        question_tokens: behind the last block, another in every prompt: question, the template's end.
        label_tokens: of the label of each block, and of what stands between blocks.

    Raises:
        ConfigError: below 0.
    """

    head_tokens: int = 0
    question_tokens: int = 0
    label_tokens: int = LABEL_TOKENS

    def __post_init__(self) -> None:
        for name in ("head_tokens", "question_tokens", "label_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(name, f"is {getattr(self, name)}", "use an int of 0 or more")

    def head(self) -> list[Segment]:
        """The segments that open every prompt."""
        return [Segment(_Head(), self.head_tokens)]

    def turn(self, plan: Plan, templates: Templates) -> list[Segment]:
        """A turn as it stands in the prompt: each block behind its label, then the annotation and the question."""
        segments = []
        for segment, block in zip(block_segments(plan, templates), plan.blocks, strict=True):
            segments += [Segment(_Label(block.label), self.label_tokens), segment]
        return [*segments, *order_segments(plan, templates), Segment(_Question(plan.request_id), self.question_tokens)]


class Annotation(NamedTuple):
    """Key of an annotation's segment."""

    text: str


class _Head(NamedTuple):
    kind: str = "head"


class _Label(NamedTuple):
    label: str
    kind: str = "label"


class _Question(NamedTuple):
    request_id: RequestId
    kind: str = "question"


class _Block(NamedTuple):
    scope: str
    block_id: BlockId


def block_segments(plan: Plan, templates: Templates) -> Iterator[Segment]:
    """Each block of a plan: in full, or the location annotation in its place."""
    for block in plan.blocks:
        if block.location_annotation is None:
            yield Segment(_Block(plan.scope, block.block_id), block.tokens)
        else:
            yield _annotation(block.location_annotation, templates)


def order_segments(plan: Plan, templates: Templates) -> list[Segment]:
    """The order annotation, if there is one."""
    return [] if plan.order_annotation is None else [_annotation(plan.order_annotation, templates)]


def _annotation(text: str, templates: Templates) -> Segment:
    return Segment(Annotation(text), estimate_annotation_tokens(text, templates))
