"""Formats that write each unit as a line, or as a row of a table."""

from __future__ import annotations

import re
from typing import Final

from prefixpilot.formats.shape import Shape

_BLANK_LINE: Final = re.compile(r"\n[ \t]*\n")

OPEN_WEBUI_MEMORY: Final = Shape(
    name="open_webui_memory",
    starts=(),
    behind=("\n",),
    probes=("\nUser Context:",),
    head=re.compile(r"(?m)^(?P<label>(?P<number>\d+)\. \[[\d-]{10}\]) "),
    joint="\n",
    front=re.compile(r"(?m)^User Context:[ \t]*\n\Z"),
    stop=_BLANK_LINE,
    lines=True,
    numbers="sequence",
    ranked=True,
    repeats="keep-label",
)

MEM0: Final = Shape(
    name="mem0",
    starts=("- ",),
    behind=("\n",),
    probes=("emories", "acts", "EMORIES", "FACTS"),
    head=re.compile(r"(?m)^- "),
    joint="\n",
    front=re.compile(
        r"(?m)^(?:#{1,4} |\*\*)?"
        r"(?i:(?:(?:the |this )?(?:user(?:'s)?|relevant|long-term|saved|stored|retrieved|known) )*)"
        r"(?:[Mm]emories|MEMORIES|[Ff]acts|FACTS)(?:/(?i:facts))?(?: (?i:about the user))?:(?:\*\*)?[ \t]*\n\Z"
    ),
    front_ends=":*",
    stop=_BLANK_LINE,
    lines=True,
)

GRAPHRAG_LOCAL: Final = Shape(
    name="graphrag_local",
    starts=(),
    behind=("\n",),
    probes=("\n-----Sources-----",),
    head=re.compile(r"(?m)^(?P<number>\d+)\|"),
    joint="\n",
    front=re.compile(r"(?m)^-----Sources-----\nid\|text\n\Z"),
    stop=re.compile(r"\n-----\w[\w ]*-----\n|\n---\w[\w ]*---\n"),
    numbers="unique",
    least=40,
    repeats="keep-label",
)
"""Rows of the table of sources; the other tables are ranked or in order of time. Texts are not escaped: where a row has
hardly any text, or an id comes twice, a text may hold what looks like a row, and nothing is found."""

LIGHTRAG: Final = Shape(
    name="lightrag",
    starts=('{"reference_id":',),
    behind=("\n",),
    head=re.compile(r'(?m)^\{"reference_id": ?"(?P<label>[^"\\\n]*)", ?"content": ?"'),
    closing=re.compile(r'(?m)"\}$'),
    closes='"}',
    front=re.compile(r"(?m)^```(?:json)?\n\Z"),
    back=re.compile(r"\n```"),
    in_json=True,
    lone=True,
    repeats="keep-label",
)

LISTED_SHAPES: Final = (OPEN_WEBUI_MEMORY, MEM0, GRAPHRAG_LOCAL, LIGHTRAG)
