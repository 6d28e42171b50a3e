"""Haystack as installed: the component in a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integrations.small_rag import DOCUMENTS, QUERIES, Query, found, missing, prefilled_tokens, prompts

from prefixpilot.errors import ConfigError
from prefixpilot.testing import SimulatedEngine

pytestmark = pytest.mark.integrations
pytest.importorskip("haystack", reason="run `make test-integrations`")

from haystack import Document, Pipeline  # noqa: E402
from haystack.components.builders import ChatPromptBuilder  # noqa: E402
from haystack.components.generators.chat import OpenAIChatGenerator  # noqa: E402
from haystack.dataclasses import ByteStream, ChatMessage  # noqa: E402
from haystack.utils import Secret  # noqa: E402

from prefixpilot.adapters.haystack import PrefixPilotOrderer  # noqa: E402

PLAIN = "{% for d in documents %}{{ d.content }}\n\n{% endfor %}{{ question }}"
TOLD = (
    "{% for d in documents %}{{ d.meta.prefixpilot_label }}\n{{ d.content }}\n\n{% endfor %}"
    "{{ annotation }}\n\n{{ question }}"
)


def documents(query: Query) -> list[Document]:
    return [
        Document(content=text, meta={"page": n}, score=1 / (rank + 1))
        for rank, (n, text) in enumerate(zip(query.found, found(query), strict=True))
    ]


def pipeline(engine: SimulatedEngine, template: str, orderer: PrefixPilotOrderer | None) -> Pipeline:
    made = Pipeline()
    made.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user(template)], required_variables="*"))
    made.add_component(
        "llm", OpenAIChatGenerator(Secret.from_token("unused"), "simulated", api_base_url=f"{engine.base_url}/v1")
    )
    made.connect("prompt.prompt", "llm.messages")
    if orderer is not None:
        made.add_component("order", orderer)
        made.connect("order.documents", "prompt.documents")
        if "annotation" in template:
            made.connect("order.annotation", "prompt.annotation")
    return made


def ask(engine: SimulatedEngine, template: str, orderer: PrefixPilotOrderer | None) -> None:
    made = pipeline(engine, template, orderer)
    first = "prompt" if orderer is None else "order"
    for query in QUERIES:
        data: dict[str, dict[str, Any]] = {"prompt": {"question": query.question}}
        data.setdefault(first, {})["documents"] = documents(query)
        made.run(data)


@pytest.mark.parametrize(("template", "annotations"), [(PLAIN, "metadata"), (TOLD, "metadata"), (PLAIN, "text")])
def test_a_pipeline_prefills_less_with_the_same_evidence(template: str, annotations: Any) -> None:
    with SimulatedEngine() as without:
        ask(without, PLAIN, None)
    with SimulatedEngine() as engine:
        ask(engine, template, PrefixPilotOrderer(annotations=annotations))
    assert missing(engine) == missing(without) == []
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)
    told = template == TOLD or annotations == "text"
    assert any("priority order: [Doc " in prompt for prompt in prompts(engine)) == told
    assert any("[Doc 1]\n" in prompt for prompt in prompts(engine)) == told


def test_documents_keep_what_they_are() -> None:
    orderer = PrefixPilotOrderer()
    first = orderer.run(documents=documents(QUERIES[0]))
    assert first["annotation"] == ""
    given, before = documents(QUERIES[1]), documents(QUERIES[1])
    ordered = orderer.run(documents=given)
    assert given == before
    assert ordered["annotation"] == ordered["documents"][-1].meta["prefixpilot_annotation"]
    ranks = [document.meta["prefixpilot_rank"] for document in ordered["documents"]]
    assert sorted(ranks) == [0, 1, 2, 3] and ranks != [0, 1, 2, 3]
    for rank, document in zip(ranks, ordered["documents"], strict=True):
        was = before[rank]
        assert (document.id, document.content, document.score) == (was.id, was.content, was.score)
        assert document.meta.items() >= was.meta.items()


def test_documents_without_text_stay() -> None:
    image = Document(blob=ByteStream(b"image"), meta={"kind": "png"})
    ordered = PrefixPilotOrderer(annotations="text").run(documents=[image, Document(content=DOCUMENTS[0])])["documents"]
    assert {document.id for document in ordered} == {image.id, Document(content=DOCUMENTS[0]).id}
    assert [document.blob for document in ordered if document.content is None] == [image.blob]


def test_a_pipeline_is_saved_and_loaded() -> None:
    made = Pipeline()
    made.add_component("order", PrefixPilotOrderer(annotations="text", scope="faq"))
    loaded = Pipeline.loads(made.dumps(), allowed_modules=["prefixpilot.adapters.haystack"])
    assert loaded.dumps() == made.dumps()
    answer = loaded.run({"order": {"documents": documents(QUERIES[0])}})
    assert answer["order"]["documents"][0].content == f"[Doc 1]\n{DOCUMENTS[0]}"


def test_a_setting_that_is_none_is_refused() -> None:
    wrong: Any = "somewhere"
    with pytest.raises(ConfigError, match="annotations"):
        PrefixPilotOrderer(annotations=wrong)


def test_nothing_found_is_nothing() -> None:
    assert PrefixPilotOrderer().run(documents=[]) == {"documents": [], "annotation": ""}
