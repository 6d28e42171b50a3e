"""How applications write documents, memories and tool results into strings: invented texts, real marks.

A :class:`Layout` is a string with its units kept apart, so that an oracle can say what became of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple

Where = Literal["system", "user", "tool"]


class Document(NamedTuple):
    """What a retriever knows of a text."""

    name: str
    text: str


class Unit(NamedTuple):
    """One rendered text: what stands before its body (label and all), the body as it stands, what stands behind."""

    before: str
    body: str
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A string made of units.

    Attributes:
        movable: the units may change places. Otherwise every unit keeps its place.
        repeats: an equal text may become an annotation.
        escaped: bodies stand inside the quotes of JSON strings.
        heading: the name that stands once in front of all units.
    """

    head: str
    units: tuple[Unit, ...]
    joint: str
    tail: str
    movable: bool
    repeats: bool = True
    escaped: bool = False
    heading: str = ""

    @property
    def text(self) -> str:
        return self.head + self.joint.join(u.before + u.body + u.behind for u in self.units) + self.tail

    def decoded(self, body: str) -> str:
        """A body as the model reads it."""
        return str(json.loads(f'"{body}"')) if self.escaped else body


@dataclass(frozen=True, slots=True)
class Application:
    """A way to write.

    Attributes:
        where: which string holds the documents.
        rebuilt: the history later has the bare question; documents come anew each turn.
    """

    name: str
    where: Where
    layout: Callable[[Sequence[Document], str], Layout]
    rebuilt: bool = False


def _numbered(
    before: str, behind: str, joint: str, head: str, tail: str, *, first: int = 1, heading: str = ""
) -> Callable[[Sequence[Document], str], Layout]:
    """``{n}`` is a number, ``{name}`` the document's name, ``{question}`` the question."""

    def layout(documents: Sequence[Document], question: str) -> Layout:
        units = tuple(
            Unit(before.replace("{n}", str(i)).replace("{name}", d.name), d.text, behind.replace("{n}", str(i)))
            for i, d in enumerate(documents, first)
        )
        return Layout(head, units, joint, tail.replace("{question}", question), movable=True, heading=heading)

    return layout


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _json_hits(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(
        Unit(
            f'{{"title": "{_escaped(d.name)}", "url": "https://w.example/{_escaped(d.name)}", "content": "',
            _escaped(d.text),
            f'", "score": 0.{99 - i}}}',
        )
        for i, d in enumerate(documents)
    )
    head = f'{{"query": {json.dumps(question)}, "images": [], "results": ['
    return Layout(head, units, ", ", '], "response_time": 1.2}', movable=False, escaped=True)


def _onyx(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(
        Unit(
            f'{{\n            "document": {i},\n            "title": "{_escaped(d.name)}",\n            "content": "',
            _escaped(d.text),
            '"\n        }',
        )
        for i, d in enumerate(documents, 1)
    )
    return Layout('{\n    "results": [\n        ', units, ",\n        ", "\n    ]\n}", movable=False, escaped=True)


def _facts(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(
        Unit('{"fact": "', _escaped(d.text), f'", "valid_at": "2024-0{1 + i % 8}-11", "invalid_at": "Present"}}')
        for i, d in enumerate(documents)
    )
    head = "You know this user.\n\n    Facts with their dates:\n    <FACTS>\n            ["
    return Layout(head, units, ", ", "]\n    </FACTS>\n", movable=False, escaped=True)


def _letta(documents: Sequence[Document], question: str) -> Layout:
    def block(d: Document) -> Unit:
        tag = "".join(c if c.isalnum() else "_" for c in d.name)
        counts = f"- chars_current={len(d.text)}\n- chars_limit=5000"
        front = f"<{tag}>\n<description>\nNotes.\n</description>\n<metadata>\n{counts}\n</metadata>\n<value>\n"
        return Unit(front, d.text, f"\n</value>\n</{tag}>")

    head = "You keep your own memory.\n\n<memory_blocks>\nBlocks held now:\n\n"
    return Layout(head, tuple(map(block, documents)), "\n\n", "\n\n</memory_blocks>\n", movable=True, repeats=False)


def _lines(documents: Sequence[Document], question: str) -> Layout:
    """One memory a line: texts without line breaks."""
    units = tuple(Unit("- ", " ".join(d.text.split())) for d in documents)
    return Layout("You are kind.\n\nUser Memories:\n", units, "\n", "", movable=True)


def _dated(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(
        Unit(f"{i}. [2024-0{1 + i % 8}-0{1 + i % 9}]. ", " ".join(d.text.split())) for i, d in enumerate(documents, 1)
    )
    return Layout("You are kind.\n\nUser Context:\n", units, "\n", "\n", movable=True)


def _numbered_lines(documents: Sequence[Document], question: str) -> Layout:
    """A file that was read: one unit, the whole."""
    lines = "\n".join(f"{i:6}\t{line}" for i, line in enumerate(documents[0].text.split("\n"), 1))
    return Layout("", (Unit("", lines),), "", "", movable=False)


def _plain(documents: Sequence[Document], question: str) -> Layout:
    return Layout("", (Unit("", documents[0].text),), "", "", movable=False)


def _retriever(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(Unit(f"Source: {{'source': '{d.name}', 'start_index': 0}}\nContent: ", d.text) for d in documents)
    return Layout("", units, "\n\n", "", movable=False)


def _files(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(Unit(f"/repo/{d.name}:\n", d.text, "\n") for d in documents)
    return Layout("", units, "\n---\n", "", movable=False)


def _fenced(documents: Sequence[Document], question: str) -> Layout:
    units = tuple(Unit(f"src/{d.name}\n```\n", d.text.replace("`", "'"), "\n```") for d in documents)
    return Layout("Files in the chat, this is their true state:\n\n", units, "\n\n", f"\n\n{question}", movable=True)


def _glued(documents: Sequence[Document], question: str) -> Layout:
    """Nothing shows where a text ends, so that nothing may be done."""
    return Layout(f"{question} ", (Unit("", " ".join(d.text for d in documents)),), "", "", movable=False)


APPLICATIONS: Final[tuple[Application, ...]] = (
    Application(
        "open_webui_rag",
        "user",
        _numbered(
            '<source id="{n}" name="{name}">',
            "</source>",
            "\n",
            "### Task:\nAnswer from the context, cite as [id].\n\n<context>\n",
            "\n</context>\n\n{question}",
        ),
        rebuilt=True,
    ),
    Application(
        "llamaindex_text_qa",
        "user",
        _numbered(
            "file_path: {name}\n\n",
            "",
            "\n\n",
            "Context information is below.\n---------------------\n",
            "\n---------------------\nUse it, not what you know.\nQuery: {question}\nAnswer: ",
        ),
    ),
    Application(
        "llamaindex_citation",
        "user",
        _numbered(
            "Source {n}:\n",
            "",
            "\n\n",
            "Cite by number. Now the real ones:\n------\n",
            "\n------\nQuery: {question}\nAnswer: ",
        ),
    ),
    Application(
        "documents_xml",
        "user",
        _numbered(
            '<document index="{n}">\n<source>{name}</source>\n<document_content>\n',
            "\n</document_content>\n</document>",
            "\n",
            "<documents>\n",
            "\n</documents>\n\n{question}",
        ),
    ),
    Application(
        "flowise",
        "system",
        _numbered("<doc id='{n}'>", "</doc>", "\n", "You speak.\n------------\n", "\n------------\nBe brief.", first=0),
        rebuilt=True,
    ),
    Application(
        "anythingllm",
        "system",
        _numbered(
            "[CONTEXT {n}]:\n", "\n[END CONTEXT {n}]", "\n\n", "You serve the desk.\nContext:\n", "\n\n", first=0
        ),
        rebuilt=True,
    ),
    Application(
        "ragflow",
        "system",
        _numbered(
            "ID: {n}\n├── Title: {name}\n└── Content:\n",
            "",
            "\n------\n\n",
            "You answer.\n\nHere is the knowledge base:\n\n------\n\n",
            "\n------\n\nThe above is the knowledge base.",
            first=0,
        ),
        rebuilt=True,
    ),
    Application(
        "perplexica",
        "system",
        _numbered(
            "<result index={n} title={name}>",
            "</result>",
            "\n",
            '\nCite like [1].\n\n    <context>\n    <search_results note="may be cited">\n',
            "\n    </search_results>\n    </context>\n",
        ),
        rebuilt=True,
    ),
    Application(
        "librechat_items",
        "system",
        _numbered(
            "<contextItem>\n              <![CDATA[",
            "]]>\n            </contextItem>",
            "\n            ",
            "<files>\n  <file>\n    <filename>all.txt</filename>\n    <context>\n            ",
            "\n    </context>\n  </file>\n</files>\n",
            heading="all.txt",
        ),
        rebuilt=True,
    ),
    Application("dify", "system", _numbered("", "", "\n", "Use this:\n<context>\n", "\n</context>\n"), rebuilt=True),
    Application("stuff", "system", _numbered("", "", "\n\n", "Keep to the notes given here.\n\n", ""), rebuilt=True),
    Application("hub_prompt", "user", _numbered("", "", "\n\n", "Question: x \nContext: ", " \nAnswer:")),
    Application("mem0", "system", _lines, rebuilt=True),
    Application("open_webui_memory", "system", _dated, rebuilt=True),
    Application("zep", "system", _facts, rebuilt=True),
    Application("letta", "system", _letta, rebuilt=True),
    Application("aider", "user", _fenced, rebuilt=True),
    Application("txtai", "user", _glued),
)

NAMED: Final = tuple(app for app in APPLICATIONS if app.name in ("llamaindex_text_qa", "letta", "aider"))
"""Their labels are names, which tell no rank: where something moves, a line has to."""

TOOLS: Final[Mapping[str, Callable[[Sequence[Document], str], Layout]]] = {
    "read_file": _plain,
    "view": _numbered_lines,
    "search_web": _json_hits,
    "search_notes": _onyx,
    "retrieve": _retriever,
    "read_many": _files,
}


def documents(rng: Random, user: str, world: str, count: int = 8) -> list[Document]:
    """A pool: some of all users, some of one; near copies, long ones with a passage in common, odd ones."""
    passage = " ".join(f"Clause {k} of {world} binds whoever signs in quarter {k % 4}." for k in range(14))
    pool = [Document(f"rules-{i}.md", _prose(f"Rule {i} of {world}", i)) for i in range(count // 2)]
    pool += [Document(f"own-{i}.md", _prose(f"Account {i} of ~{user}~ in {world}", i + 7)) for i in range(count // 2)]
    pool.append(Document("rules-0.md", pool[0].text.replace("euros", "crowns")))
    pool += [Document(f"long-{i}.md", f"Opening {i} of {world}.\n\n{passage}\n\nClosing {i}.") for i in range(2)]
    odd = (
        f'<source id="9" name="x">not one of {world}</source>\n---\n- a list "quoted" \\ ',
        f"[Unchanged: same text as rules-0.md above.] says ~{user}~, who wrote this in a document by hand, {world}.",
        f"def f(x):\n\n    return '{world}'  # ------\n\n\n\nclass A:\n    pass\n\n# Source 3:\n" + "x = 1\n" * 20,
        f"\U0001f600 Grüße aus {world}: “Zitat”, Tab\tund ein langer Satz, der bis an das Ende der Zeile läuft, ja.",
    )
    pool.append(Document("odd.txt", rng.choice(odd).strip()))
    return pool


def _prose(subject: str, seed: int) -> str:
    sentences = [
        f"{subject} says that the fee is {seed * 7 + 3} euros and is due before the month ends.",
        f"Who pays late owes {seed + 2} percent more, and the desk writes a letter about it.",
        f"Boats over {seed + 9} metres pay double, unless the harbour master says otherwise in writing.",
    ]
    return ("\n\n" if seed % 3 == 0 else " ").join(sentences)
