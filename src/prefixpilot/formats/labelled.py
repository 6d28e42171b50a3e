"""Formats that write a line or more above each unit: a number, a name, metadata.

Where nothing closes a unit, the last one of a run is found only if the format marks the end of the run.
"""

from __future__ import annotations

import re
from typing import Final

from prefixpilot.formats.shape import ANYWHERE, Shape

_META: Final = r"[A-Za-z_][\w .-]*: [^\n]*\n"

LLAMAINDEX_TEXT_QA: Final = Shape(
    name="llamaindex_text_qa",
    starts=(),
    behind=("\n\n", "-" * 21 + "\n"),
    probes=("\n" + "-" * 21 + "\n",),
    head=re.compile(rf"(?:(?<=\n\n)|(?<=-{{21}}\n))(?P<keys>(?P<label>{_META})(?:{_META})*+)\n"),
    joint="\n\n",
    front=re.compile(r"(?m)^-{21}\n\Z"),
    back=re.compile(r"\n-{21}(?=\n|\Z)"),
)

LLAMAINDEX_CITATION: Final = Shape(
    name="llamaindex_citation",
    starts=("Source ",),
    behind=("\n",),
    probes=("\n------\n",),
    head=re.compile(r"(?m)^(?P<label>Source (?P<number>\d+)):\n"),
    joint="\n\n",
    front=re.compile(r"(?m)^-{6}\n\Z"),
    back=re.compile(r"\n-{6}(?=\n|\Z)"),
    numbers="sequence",
    ranked=True,
    repeats="keep-label",
)

RAGFLOW: Final = Shape(
    name="ragflow",
    starts=("ID: ",),
    behind=("\n",),
    probes=("└── Content:",),
    head=re.compile(r"(?m)^(?P<label>ID: (?P<number>\d+))\n(?:├── [^\n]*\n)++└── Content:\n"),
    joint="\n\n------\n\n\n",
    front=re.compile(r"(?m)(?:^-{6}\n\n+|:[ \t]*\n+|\A\s*)\Z"),
    back=re.compile(r"\n(?=[^\n]{0,8}(?:The above is the knowledge base|以上是知识库))"),
    numbers="unique",
    ranked=True,
    repeats="keep-label",
)

ANYTHINGLLM: Final = Shape(
    name="anythingllm",
    starts=("[CONTEXT ",),
    behind=("\n",),
    head=re.compile(r"(?m)^\[(?P<label>CONTEXT (?P<key>(?P<number>\d+)))\]:\n"),
    closing=re.compile(r"\[END CONTEXT (?P<key>\d+)\]"),
    closes="[END CONTEXT ",
    back=re.compile(r"[ \t]*(?:\n|\Z)"),
    numbers="sequence",
    lone=True,
    ranked=True,
    repeats="keep-label",
)

QUIVR: Final = Shape(
    name="quivr",
    starts=("Filename: ",),
    head=re.compile(r"(?<!\S)(?P<label>Filename: [^\n]{0,300}\nSource: (?P<number>\d+)) *\n"),
    joint="\n\n",
    front=ANYWHERE,
    numbers="sequence",
    ranked=True,
    repeats="keep-label",
)

VERBA: Final = Shape(
    name="verba",
    starts=("Document Title: ",),
    head=re.compile(
        r"(?<!\S)Document Title: (?P<label>[^\n]{0,300})\nDocument Metadata: [^\n]*\n"
        r"(?:Chunk: \d+\n)?(?:High Relevancy: (?P<score>\d+(?:\.\d*)?)\n)?"
    ),
    joint="\n\n\n",
    front=ANYWHERE,
    back=re.compile(r"\n(?=\n\n)"),
    ranked=True,
)

KOTAEMON: Final = Shape(
    name="kotaemon",
    starts=("<br><b>",),
    head=re.compile(r"<br><b>(?:Content|Table|Figure|Chatbot scenario) from (?P<label>[^<\n]*)</b>"),
    closing=re.compile(r"\n<br>"),
    closes="\n<br>",
    front=ANYWHERE,
    lone=True,
)

_WORDS: Final = (
    "(?:context|documents?|passages?|sources?|results?|snippets?|excerpts?|articles?|evidence|knowledge|memories)"
)
_FRONT: Final = re.compile(
    rf"(?im)^(?:[^\n:]{{0,80}}\b{_WORDS}\b[^\n:]{{0,60}}:[ \t]*\n{{1,2}}\Z"
    r"|<?(?P<frame>(?<=<)\w+(?=>)|-{3,}|={3,}|\"\"\")>?\n\Z)"
)
_FRONT_ENDS: Final = ':>-="'
_BACK: Final = re.compile(r"\n(?:</)?(?P<frame>(?<=</)\w+(?=>)|-{3,}|={3,}|\"\"\")>?[ \t]*(?=\n|\Z)")
_NUMBERED_WORDS: Final = ("Document", "Doc", "Passage", "Source", "Context", "Snippet", "Excerpt", "Article")
_NUMBERED: Final = (
    r"(?m)^(?P<label>(?P<alike>\[|(?:#{1,4} |\*\*)?"
    rf"(?:{'|'.join(_NUMBERED_WORDS)})[ \[#]{{1,2}})"
    r"(?P<number>\d+)(?:\]|(?=[:.(\s*])))"
)

NUMBERED_BLOCKS: Final = Shape(
    name="numbered_blocks",
    starts=("[", *(lead + word for lead in ("", "# ", "## ", "### ", "#### ", "**") for word in _NUMBERED_WORDS)),
    behind=("\n",),
    head=re.compile(_NUMBERED),
    joint="\n\n",
    front=_FRONT,
    front_ends=_FRONT_ENDS,
    back=_BACK,
    numbers="sequence",
    ranked=True,
    repeats="keep-label",
)
"""``[1] ...`` or ``Document 1: ...``, a blank line between, under a line that speaks of documents or inside a frame."""

_HEADER_STARTS: Final = ("Title: ", "Source: ", "File: ", "Filename: ", "Document: ")
_HEADER: Final = (
    r"(?P<keys>(?:Title|Source|File|Filename|Document): (?P<label>[^\n]+)\n"
    r"(?:(?:Title|Source|File|Filename|Document|Author|Date|Page|Section): ?[^\n]*\n)*+(?:Content:[ \n])?)"
)

HEADED_BLOCKS: Final = Shape(
    name="headed_blocks",
    starts=_HEADER_STARTS,
    behind=("\n",),
    head=re.compile(rf"(?m)^(?<!---\n\n){_HEADER}"),
    joint="\n\n",
    front=_FRONT,
    front_ends=_FRONT_ENDS,
    back=_BACK,
    repeats="keep-label",
)
"""``Source: ...`` or ``Title: ...`` lines over each text, a blank line between, under the same front."""

RULED_BLOCKS: Final = Shape(
    name="ruled_blocks",
    starts=_HEADER_STARTS,
    behind=("\n",),
    probes=("\n---\n",),
    head=re.compile(rf"(?m)^{_HEADER}"),
    joint="\n\n---\n\n",
    front=_FRONT,
    front_ends=_FRONT_ENDS,
    back=re.compile(r"\n</(?P<frame>\w+)>"),
    repeats="keep-label",
)
"""The same with a rule between the texts."""

LABELLED_SHAPES: Final = (
    LLAMAINDEX_TEXT_QA,
    LLAMAINDEX_CITATION,
    RAGFLOW,
    ANYTHINGLLM,
    QUIVR,
    VERBA,
    KOTAEMON,
    NUMBERED_BLOCKS,
    HEADED_BLOCKS,
    RULED_BLOCKS,
)
