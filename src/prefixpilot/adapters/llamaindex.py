"""LlamaIndex: a node postprocessor that orders what a retriever found.

It sees nodes and no prompt: every node stays, in full, with its score and metadata. By default nothing but the order
changes.
"""

from __future__ import annotations

from typing import Any

from prefixpilot.adapters.arranging import KEYS, Annotations, Arrangement, Arranger, checked
from prefixpilot.core import ContextBlock
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot

try:
    from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
except ImportError:
    raise MissingExtraError("llama-index-core", 'pip install "prefixpilot[llamaindex]"') from None


class PrefixPilotPostprocessor(BaseNodePostprocessor):
    """Puts nodes into the order in which a prompt with them hits the engine's prefix cache.

    Put it last in ``node_postprocessors``. The result holds a copy of each node with its score, none left out; what is
    added to the metadata is kept out of prompts and embeddings. Thread-safe.

    Args:
        pilot: may be shared with other adapters; a new one if ``None``.
        annotations: ``metadata``: what the model reads stays as it is; ``prefixpilot_rank``, ``prefixpilot_label`` and
            (on the last) ``prefixpilot_annotation`` are put into the metadata. ``text``: the label is also put above
            what the model reads of each node, and the annotation below the last.
        scope: names what stands in front of the nodes, if the program has several prompts.

    Raises:
        ConfigError: ``annotations`` is neither.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    pilot: ContextPilot | None = None
    annotations: Annotations = "metadata"
    scope: str = ""
    _arranger: Arranger = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """See pydantic."""
        super().model_post_init(context)
        checked(self.annotations)
        self._arranger = Arranger(self.pilot, self.scope)

    @classmethod
    def class_name(cls) -> str:
        """See LlamaIndex's ``BaseComponent``."""
        return "PrefixPilotPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        arranged = self._arranger.arrange([_block(scored.node) for scored in nodes])
        return [
            NodeWithScore(node=self._copied(nodes[position].node, arranged, place), score=nodes[position].score)
            for place, position in enumerate(arranged.order)
        ]

    def _copied(self, node: BaseNode, arranged: Arrangement, place: int) -> BaseNode:
        copy = node.model_copy(update={"metadata": {**node.metadata, **arranged.metadata(place)}})
        copy.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, *KEYS]
        copy.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, *KEYS]
        if self.annotations == "text" and node.get_content():
            _annotate(copy, arranged, place)
        return copy


def _block(node: BaseNode) -> ContextBlock:
    """A node as the model reads it; one without text (an image) is known by its id."""
    text = node.get_content(metadata_mode=MetadataMode.LLM)
    return ContextBlock(text) if text else ContextBlock(id=node.node_id)


def _annotate(node: Any, arranged: Arrangement, place: int) -> None:
    """Label and annotation go around what the model reads, metadata included: into the node's template where it has one
    in use, which leaves the text as it was, else into the text."""
    if node.get_metadata_str(mode=MetadataMode.LLM):
        label, ending = (part.replace("{", "{{").replace("}", "}}") for part in _around(arranged, place))
        node.text_template = f"{label}{node.text_template}{ending}"
    else:
        node.set_content(arranged.text(place, node.get_content()))


def _around(arranged: Arrangement, place: int) -> tuple[str, str]:
    return f"{arranged.labels[place]}\n", arranged.ending(place)
