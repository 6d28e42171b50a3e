"""The order of documents that a framework hands over before it writes the prompt itself: nothing is left out of it.

What an adapter sees here is a list of documents and no prompt, so each document stays in full, a repeated one too, and
nothing is known of conversations. What brings the retriever's ranking to the model (labels and the order annotation)
is told beside the order; the adapter says how it gets into the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

from prefixpilot.annotations import written_label
from prefixpilot.core import ContextBlock, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import PARAGRAPH

RANK: Final = "prefixpilot_rank"
LABEL: Final = "prefixpilot_label"
ANNOTATION: Final = "prefixpilot_annotation"
KEYS: Final = (RANK, LABEL, ANNOTATION)
"""Keys of a document's metadata: its place in the list as given, from 0; its name; on the last, the annotation."""

Annotations: TypeAlias = Literal["metadata", "text"]
"""Where labels and the order annotation go: beside the documents, or into the texts of copies of them."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Documents in prompt order.

    Attributes:
        order: positions of the documents as given: a permutation.
        labels: of each, in prompt order, as it is to stand in the prompt: ``[Doc 1]``. Equal texts have one label.
        annotation: goes behind the documents and before the question; ``None`` where nothing was moved.
    """

    order: tuple[int, ...]
    labels: tuple[str, ...]
    annotation: str | None

    def metadata(self, place: int) -> dict[str, int | str]:
        """What is told of the document at a place of the prompt, under :data:`KEYS`."""
        told: dict[str, int | str] = {RANK: self.order[place], LABEL: self.labels[place]}
        if self.annotation is not None and place == len(self.order) - 1:
            told[ANNOTATION] = self.annotation
        return told

    def ending(self, place: int) -> str:
        """What goes behind the document at a place of the prompt: the annotation if it is the last, or nothing."""
        last = place == len(self.order) - 1
        return f"{PARAGRAPH}{self.annotation}" if last and self.annotation is not None else ""

    def text(self, place: int, text: str) -> str:
        """The text of the document at a place of the prompt, with its label above it, and what goes behind it."""
        return f"{self.labels[place]}\n{text}{self.ending(place)}"


def written(texts: Iterable[str], metadata: Iterable[Mapping[str, Any]]) -> str:
    """Documents in prompt order as one text: each under its label, then the annotation; a blank line between them.

    A document that was not arranged stands without a label; what already stands in a text is not written again.
    """
    paragraphs: list[str] = []
    endings: list[str] = []
    for text, told in zip(texts, metadata, strict=True):
        label, annotation = told.get(LABEL), told.get(ANNOTATION)
        paragraphs.append(text if label is None or text.startswith(f"{label}\n") else f"{label}\n{text}")
        if annotation is not None and not text.endswith(annotation):
            endings.append(annotation)
    return PARAGRAPH.join([*paragraphs, *endings])


class Arranger:
    """Orders lists of documents by one pilot, and takes each as sent. Safe to share between threads.

    Args:
        pilot: may be shared with other adapters; a new one if ``None``.
        scope: names what stands in front of the documents in the prompt, if one program has several such prompts:
            nothing is shared between two scopes.
    """

    def __init__(self, pilot: ContextPilot | None = None, scope: str = "") -> None:
        self.pilot = ContextPilot() if pilot is None else pilot
        self.scope = scope

    def arrange(self, blocks: Sequence[ContextBlock]) -> Arrangement:
        """The order in which to put them into the prompt. O(k + nodes on matching paths) for k blocks.

        Args:
            blocks: the most relevant first, each with the text that will stand in the prompt.
        """
        request_id = RequestId(f"prefixpilot-{uuid4().hex}")
        plan = self.pilot.optimize(Request(tuple(blocks), request_id, scope=self.scope))
        labels = tuple([written_label(planned.label, plan.templates) for planned in plan.blocks])
        return Arrangement(plan.order, labels, plan.order_annotation)


def checked(annotations: Annotations) -> Annotations:
    """A setting of where annotations go.

    Raises:
        ConfigError: it is none of the two.
    """
    if annotations not in get_args(Annotations):
        raise ConfigError("annotations", f"is {annotations!r}", f"use one of: {', '.join(get_args(Annotations))}")
    return annotations
