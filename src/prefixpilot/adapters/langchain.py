"""LangChain: a document compressor that orders what a retriever found. For agents see :mod:`.langchain_agents`.

It sees documents and no prompt: every document stays in full, with its metadata. By default nothing but the order
changes, and the metadata tells label and annotation; :func:`format_documents` writes them into a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prefixpilot.adapters.arranging import Annotations, Arranger, checked, written
from prefixpilot.core import ContextBlock
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot

try:
    from langchain_core.documents import BaseDocumentCompressor, Document
    from pydantic import ConfigDict, PrivateAttr
except ImportError:
    raise MissingExtraError("langchain", 'pip install "prefixpilot[langchain]"') from None


class PrefixPilotCompressor(BaseDocumentCompressor):
    """Puts documents into the order in which a prompt with them hits the engine's prefix cache.

    Give it to whatever takes a compressor (``ContextualCompressionRetriever``), or call ``compress_documents`` on what
    a retriever found. The result holds a copy of each document, none left out; ids stay. Thread-safe.

    Args:
        pilot: may be shared with other adapters; a new one if ``None``.
        annotations: ``metadata``: texts stay as they are; ``prefixpilot_rank``, ``prefixpilot_label`` and (on the last)
            ``prefixpilot_annotation`` are put into the metadata. ``text``: the label is also put above each text, and
            the annotation below the last, for chains that join texts in a way that cannot be changed.
        scope: names what stands in front of the documents, if the program has several prompts.

    Raises:
        ConfigError: ``annotations`` is neither.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)

    pilot: ContextPilot | None = None
    annotations: Annotations = "metadata"
    scope: str = ""
    _arranger: Arranger = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """See pydantic."""
        checked(self.annotations)
        self._arranger = Arranger(self.pilot, self.scope)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Sequence[Document]:
        """The documents in prompt order. ``query`` and ``callbacks`` are not looked at."""
        arranged = self._arranger.arrange([ContextBlock(document.page_content) for document in documents])
        result = []
        for place, position in enumerate(arranged.order):
            document = documents[position]
            update: dict[str, Any] = {"metadata": {**document.metadata, **arranged.metadata(place)}}
            if self.annotations == "text":
                update["page_content"] = arranged.text(place, document.page_content)
            result.append(document.model_copy(update=update))
        return result


def format_documents(documents: Iterable[Document]) -> str:
    """What a compressor in its default setting gave, as the text of a prompt: labels, texts and annotation."""
    documents = list(documents)
    return written([d.page_content for d in documents], [d.metadata for d in documents])
