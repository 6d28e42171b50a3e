"""Writers of each format: documents in, the string of an application out, with what must be found in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prefixpilot.apis.base import Role


class Document(NamedTuple):
    name: str
    body: str


DOCUMENTS = (
    Document(
        "kiln.md", "The kiln in the long barn reaches 1,240 degrees and needs nine hours to cool before it is opened."
    ),
    Document(
        "clay.md", "Grey clay comes from the pit at Orme.\n\nIt is left to weather for one winter, then sieved twice."
    ),
    Document(
        "glaze.md", "Ash glaze is two parts ash, one part clay; it runs when the coat is thicker than a fingernail."
    ),
    Document(
        "wheel.md",
        'The kick wheel by the door is for learners. "Do not oil it" is written on the frame, and it is meant.',
    ),
    Document(
        "market.md", "On market days the shop opens at seven and the yard gate stays shut until the carts are gone."
    ),
    Document(
        "wood.md", "Beech is split in March and burnt two years later, at the earliest, so that the ash stays white."
    ),
    Document(
        "orders.md", "An order of more than forty bowls is made in two firings, and the second is paid in advance."
    ),
)
FIRST = DOCUMENTS[:5]
SECOND = (DOCUMENTS[4], DOCUMENTS[5], DOCUMENTS[0], DOCUMENTS[6], DOCUMENTS[2])
"""Shares three of five with the first, in another order."""


class Written(NamedTuple):
    """A string, the units in it and their bare texts as they stand there."""

    text: str
    blocks: tuple[str, ...]
    bodies: tuple[str, ...]


@dataclass(frozen=True)
class Writer:
    """One format.

    Attributes:
        unit: number (from 0) and document to the unit and the body as it stands in it.
        stable: equal documents give equal units, wherever they stand.
        last_proved: whether the end of the last unit can be seen.
        flat: bodies are one line.
    """

    name: str
    before: str
    unit: Callable[[int, Document], tuple[str, str]]
    joint: str
    after: str
    role: Role = "system"
    stable: bool = False
    last_proved: bool = True
    flat: bool = False

    def write(self, documents: Sequence[Document]) -> Written:
        if self.flat:
            documents = [Document(name, " ".join(body.split())) for name, body in documents]
        pairs = [self.unit(number, document) for number, document in enumerate(documents)]
        blocks, bodies = tuple(block for block, _ in pairs), tuple(body for _, body in pairs)
        return Written(self.before + self.joint.join(blocks) + self.after, blocks, bodies)


def _text(template: str, first: int = 1) -> Callable[[int, Document], tuple[str, str]]:
    """A unit from a template with ``{n}``, ``{name}`` and ``{body}``."""
    return lambda number, document: (
        template.replace("{n}", str(number + first)).replace("{name}", document.name).replace("{body}", document.body),
        document.body,
    )


def _json_line(number: int, document: Document) -> tuple[str, str]:
    raw = json.dumps(document.body)
    return f'{{"reference_id": "{number + 1}", "content": {raw}}}', raw[1:-1]


def _letta(number: int, document: Document) -> tuple[str, str]:
    label = document.name.partition(".")[0]
    unit = (
        f"<{label}>\n<description>\nWhat is known of {label}.\n</description>\n<metadata>\n"
        f"- chars_current={len(document.body)}\n- chars_limit=4000\n</metadata>\n<value>\n"
        f"{document.body}\n</value>\n</{label}>"
    )
    return unit, document.body


def _verba(number: int, document: Document) -> tuple[str, str]:
    text = f"{document.body}\nChunk: 9\nA second piece of {document.name}."
    head = f"Document Title: {document.name}\nDocument Metadata: pottery\nChunk: 8\nHigh Relevancy: 0.7{9 - number}\n"
    return head + text, text


def _record(document: Document) -> int:
    """An id that a document keeps."""
    return sum(document.name.encode())


_RAGFLOW_GUIDE = (
    "\nThe above is the knowledge base.\nCite like this, for a base with\nID: 45\n├── Title: sample.txt\n└── Content:\n"
    "Swans fly in May.\n\nID: 46\n├── Title: other.txt\n└── Content:\nSo do geese.\n"
)
_WEBUI_GUIDE = (
    'Answer with [id] only where a tag such as <source id="1"> or <source id="9" name="x"> has one.\n'
    'Example:\n<source id="1" name="fake">No.</source>\n\n<context>\n'
)
_LIBRE_FILES = (
    "\n        The user has attached one file:\n        <files>\n"
    "          <file>\n            <filename>pots.txt</filename>\n"
    "            <type>text/plain</type>\n          </file>\n        </files>\n        <context>\n"
)
_CITATION_EXAMPLE = (
    "For example:\nSource 1:\nThe lamp is lit at dusk.\nSource 2:\nOil is dear.\nQuery: When?\nAnswer: At dusk [1].\n"
    "Below are the sources:\n------\n"
)

WRITERS = (
    Writer(
        "open_webui_rag",
        _WEBUI_GUIDE,
        _text('<source id="{n}" name="{name}">{body}</source>'),
        "\n",
        "\n</context>\n\nWhy?",
        role="user",
    ),
    Writer(
        "open_webui_rag",
        "<context>\n",
        _text('<source id="{n}">{body}</source>'),
        "\n",
        '\n</context>\nMark with [1] for <source id="1">.\n<context><source id="1">x</source></context>',
    ),
    Writer(
        "anthropic_documents_xml",
        "<documents>\n",
        _text(
            '<document index="{n}">\n<source>{name}</source>\n'
            "<document_content>\n{body}\n</document_content>\n</document>"
        ),
        "\n",
        "\n</documents>\n\nWhich clay?",
        role="user",
    ),
    Writer(
        "anthropic_documents_xml",
        "Read this.\n\n<documents>\n",
        _text("<document>\n<source>{name}</source>\n<document_contents>\n{body}\n</document_contents>\n</document>"),
        "\n\n",
        "\n</documents>",
        role="user",
        stable=True,
    ),
    Writer(
        "flowise",
        "Use this.\n------------\n",
        _text("<doc id='{n}'>{body}</doc>", 0),
        "\n",
        "\n------------\nBe brief.",
    ),
    Writer(
        "perplexica",
        '<context>\n    <search_results note="cite these">\n',
        _text("<result index={n} title=About {name}>{body}</result>"),
        "\n",
        "\n</search_results>\n<widgets_result>\n<result>Rain</result>\n<result>Wind</result>\n</widgets_result>\n",
    ),
    Writer(
        "librechat_rag_context",
        _LIBRE_FILES
        + "          <file>\n            <filename>pots.txt</filename>\n            <context>\n            ",
        _text("<contextItem>\n              <![CDATA[{body}]]>\n            </contextItem>"),
        "\n            ",
        "\n            </context>\n          </file>\n        </context>\n\n        Use it.",
        stable=True,
    ),
    Writer(
        "librechat_full_context",
        _LIBRE_FILES + "          ",
        _text(
            "<file>\n            <filename>{name}</filename>\n"
            "            <context>\n{body}\n            </context>\n          </file>"
        ),
        "\n          ",
        "\n        </context>\n\n        Use it.",
        stable=True,
    ),
    Writer(
        "letta",
        "Rules first.\n\n<memory_blocks>\nThe blocks that you hold:\n\n",
        _letta,
        "\n\n",
        "\n\n</memory_blocks>\n\n<memory_metadata>\n- system date: May 1\n</memory_metadata>",
        stable=True,
    ),
    Writer(
        "tagged",
        "Facts:\n\n",
        _text('<passage source="{name}">\n{body}\n</passage>'),
        "\n\n",
        "\n\nAnswer.",
        stable=True,
    ),
    Writer("tagged", "", _text("<doc>{body}</doc>"), "\n", "", role="user", stable=True),
    Writer(
        "tagged",
        "<files>\n",
        _text('<file path="notes/{name}">\n{body}\n</file>'),
        "\n",
        "\n</files>\nFix it.",
        role="user",
        stable=True,
    ),
    Writer(
        "llamaindex_text_qa",
        "Context is below.\n---------------------\n",
        _text("file_name: {name}\nkind: note\n\n{body}"),
        "\n\n",
        "\n---------------------\nGiven it, answer.\nQuery: Why?\nAnswer: ",
        role="user",
        stable=True,
    ),
    Writer(
        "llamaindex_citation",
        _CITATION_EXAMPLE,
        _text("Source {n}:\n{body}"),
        "\n\n",
        "\n------\nQuery: Why?\nAnswer: ",
        role="user",
    ),
    Writer(
        "ragflow",
        "Here is the knowledge base:\n\n------\n\n",
        _text("ID: {n}\n├── Title: {name}\n├── URL: http://pots.example/{name}\n└── Content:\n{body}", 0),
        "\n\n------\n\n\n",
        _RAGFLOW_GUIDE,
    ),
    Writer(
        "ragflow",
        "Here is the knowledge base:\n",
        _text("ID: {n}\n├── Title: {name}\n└── Content:\n{body}", 0),
        "\n\n------\n\n\n",
        "\nThat was all.",
        last_proved=False,
    ),
    Writer(
        "anythingllm",
        "You help.\nContext:\n",
        _text("[CONTEXT {n}]:\n{body}\n[END CONTEXT {n}]", 0),
        "\n\n",
        "\n\n",
    ),
    Writer(
        "quivr",
        "- Files: kiln.md, clay.md\n- Context: ",
        _text("Filename: {name}\nSource: {n} \n {body}", 0),
        "\n\n",
        "\n- Follow the user.",
        last_proved=False,
    ),
    Writer("verba", "Answer 'Why?' with this: ", _verba, "\n\n\n", "\n\n\n", role="user"),
    Writer(
        "kotaemon",
        "Context:\n",
        _text("<br><b>Content from {name} (Page 3): </b> {body} \n<br>"),
        "",
        "\nQuestion: Why?",
        role="user",
        stable=True,
        flat=True,
    ),
    Writer(
        "graphrag_local",
        "---Data tables---\n\n-----Entities-----\nid|entity|rank\n12|KILN|9\n31|CLAY|4\n\n-----Sources-----\nid|text\n",
        lambda number, document: (f"{_record(document)}|{document.body}", document.body),
        "\n",
        "\n\n\n---Target response length and format---\n\nshort\n",
        stable=True,
    ),
    Writer(
        "lightrag",
        "Document Chunks (each has a reference_id):\n\n```json\n",
        _json_line,
        "\n",
        "\n```\n\nReference Document List:\n\n```\n[1] kiln.md\n[2] clay.md\n```\n",
    ),
    Writer("mem0", "You help.\nUser Memories:\n", _text("- {body}"), "\n", "", stable=True, flat=True),
    Writer("mem0", "You help.\nUser Memories:\n", _text("- {body}"), "\n", "\n\nBe kind.", stable=True, flat=True),
    Writer(
        "open_webui_memory", "You help.\nUser Context:\n", _text("{n}. [2026-03-0{n}] {body}"), "\n", "\n", flat=True
    ),
    Writer(
        "numbered_blocks",
        "Use these documents:\n\n",
        lambda number, document: (
            f"Document [{number + 1}](Title: {document.name}) {document.body}",
            f"(Title: {document.name}) {document.body}",
        ),
        "\n\n",
        "\n\nQuestion: Why?",
        role="user",
        last_proved=False,
    ),
    Writer(
        "numbered_blocks",
        "<context>\n",
        lambda number, document: (f"[{number + 1}] {document.body}", document.body),
        "\n\n",
        "\n</context>\nWhy?",
        role="user",
    ),
    Writer(
        "headed_blocks",
        "<passages>\n",
        _text("Source: {name}\nContent: {body}"),
        "\n\n",
        "\n</passages>",
        stable=True,
    ),
    Writer(
        "ruled_blocks",
        "<context>\n",
        _text("Title: {name}\n{body}"),
        "\n\n---\n\n",
        "\n</context>\nWhy?",
        stable=True,
    ),
    Writer(
        "continue",
        "",
        _text("```notes/{name} (3-9)\n{body}\n```"),
        "\n\n",
        "\n\nUse the above code to answer.\n\nWhy?",
        role="user",
        stable=True,
    ),
    Writer(
        "continue",
        "",
        _text("```md notes/{name}\n{body}\n```"),
        "\n\n",
        "\n\nWhy?",
        role="user",
        stable=True,
    ),
    Writer(
        "aider",
        "These files are in the chat, as they are now.\n\n",
        _text("notes/{name}\n```\n{body}\n```"),
        "\n\n",
        "\n",
        role="user",
        stable=True,
    ),
    Writer(
        "aider",
        "These files are in the chat, as they are now.\n\n",
        _text("notes/{name}\n<source>\n{body}\n</source>"),
        "\n\n",
        "\n",
        role="user",
        stable=True,
    ),
)
