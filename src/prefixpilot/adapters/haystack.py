"""Haystack: a component between retriever and prompt builder that orders documents.

It sees documents and no prompt: every document stays, in full, with its score and metadata.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefixpilot.adapters.arranging import Annotations, Arranger, checked
from prefixpilot.core import ContextBlock
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError:
    raise MissingExtraError("haystack-ai", 'pip install "prefixpilot[haystack]"') from None


@component
class PrefixPilotOrderer:
    """Puts documents into the order in which a prompt with them hits the engine's prefix cache.

    Outputs: ``documents``, a copy of each, none left out, ids and scores as they were, with ``prefixpilot_rank``,
    ``prefixpilot_label`` and (on the last) ``prefixpilot_annotation`` in their meta; and ``annotation``, which tells
    the model the retriever's ranking: put it behind the documents. It is empty where nothing was moved. Thread-safe.

    Args:
        pilot: may be shared with other adapters; a new one if ``None``. Not serialized: a pipeline that is loaded from
            YAML gets a new one.
        annotations: ``text`` also puts the label above each document's content, and the annotation below the last.
        scope: names what stands in front of the documents, if the program has several prompts.

    Raises:
        ConfigError: ``annotations`` is neither ``metadata`` nor ``text``.
    """

    def __init__(
        self, pilot: ContextPilot | None = None, annotations: Annotations = "metadata", scope: str = ""
    ) -> None:
        self.annotations = checked(annotations)
        self.scope = scope
        self._arranger = Arranger(pilot, scope)

    def to_dict(self) -> dict[str, Any]:
        """See Haystack."""
        told: dict[str, Any] = default_to_dict(self, annotations=self.annotations, scope=self.scope)
        return told

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PrefixPilotOrderer:
        """See Haystack."""
        made: PrefixPilotOrderer = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document], annotation=str)
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """The documents in prompt order, and the annotation."""
        arranged = self._arranger.arrange([_block(document) for document in documents])
        result = []
        for place, position in enumerate(arranged.order):
            document = documents[position]
            content = document.content
            if self.annotations == "text" and content is not None:
                content = arranged.text(place, content)
            result.append(replace(document, content=content, meta={**document.meta, **arranged.metadata(place)}))
        return {"documents": result, "annotation": arranged.annotation or ""}


def _block(document: Document) -> ContextBlock:
    """A document by its text; one without (an image) by its id."""
    return ContextBlock(document.content) if document.content is not None else ContextBlock(id=document.id)
