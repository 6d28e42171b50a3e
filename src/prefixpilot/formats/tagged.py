"""Formats that put each unit between tags.

Bodies are not escaped by these applications, so tags inside them are told from real ones by balance and by what
stands around them (:mod:`prefixpilot.formats.runs`).
"""

from __future__ import annotations

import re
from typing import Final

from prefixpilot.formats.shape import Shape

_ATTRIBUTES: Final = r"""(?P<attributes>(?:\s+[\w:.-]+=(?:"[^"\n]*"|'[^'\n]*'))*)\s*"""
_LINE_ENDS: Final = re.compile(r"[ \t]*(?:\n|\Z|</)")
_CHILD: Final = re.compile(r"<(?P<child>document_contents?|page_content|content|text|body)>")

OPEN_WEBUI_RAG: Final = Shape(
    name="open_webui_rag",
    starts=("<source",),
    head=re.compile(rf"<source(?=\s+id=){_ATTRIBUTES}>"),
    closing=re.compile(r"</source>"),
    front=re.compile(r"<context>\s*\Z"),
    back=re.compile(r"\s*</context>"),
    lone=True,
    ranked=True,
    repeats="keep-label",
)

ANTHROPIC_DOCUMENTS_XML: Final = Shape(
    name="anthropic_documents_xml",
    starts=("<document",),
    probes=("<document_content",),
    head=re.compile(
        rf"<document{_ATTRIBUTES}>"
        r"(?=\s*(?:<(?:source|title)>(?P<label>[^<\n]*)</(?:source|title)>\s*)*+<document_contents?>)"
    ),
    closing=re.compile(r"</document>"),
    front=re.compile(r"(?m)(?:^|<documents>)[ \t]*\Z"),
    back=_LINE_ENDS,
    inner=_CHILD,
    lone=True,
    ranked=True,
    repeats="keep-label",
)

FLOWISE: Final = Shape(
    name="flowise",
    starts=("<doc id=",),
    head=re.compile(r"<doc id=(['\"])(?P<number>\d+)\1>"),
    closing=re.compile(r"</doc>"),
    back=_LINE_ENDS,
    numbers="unique",
    ranked=True,
    repeats="keep-label",
)

PERPLEXICA: Final = Shape(
    name="perplexica",
    starts=("<result index=",),
    head=re.compile(r"<result index=(?P<number>\d+) title=(?P<label>[^>\n]{0,300})>"),
    closing=re.compile(r"</result>"),
    front=re.compile(r"<search_results[^>\n]*>\s*\Z"),
    back=re.compile(r"\s*</search_results>"),
    numbers="unique",
    lone=True,
    ranked=True,
    repeats="keep-label",
)

LIBRECHAT_RAG_CONTEXT: Final = Shape(
    name="librechat_rag_context",
    starts=("<contextItem>",),
    head=re.compile(r"<contextItem>(?=\s*<!\[CDATA\[)"),
    closing=re.compile(r"(?<=\]\]>)\s*</contextItem>"),
    closes="]]>",
    front=re.compile(r"<context>\s*\Z"),
    back=re.compile(r"\s*</context>"),
    inner=re.compile(r"<!\[CDATA\["),
    heading=re.compile(r"<filename>(?P<label>[^<\n]*)</filename>"),
    lone=True,
)

LIBRECHAT_FULL_CONTEXT: Final = Shape(
    name="librechat_full_context",
    starts=("<file>",),
    head=re.compile(r"<file>\s*<filename>(?P<label>[^<\n]*)</filename>\s*<context>(?!\s*<contextItem>)"),
    closing=re.compile(r"</context>\s*</file>"),
    closes="</context>",
    back=_LINE_ENDS,
    lone=True,
)

LETTA: Final = Shape(
    name="letta",
    starts=("<",),
    behind=("\n",),
    probes=("<memory_blocks>",),
    head=re.compile(r"(?m)^<(?P<key>(?P<label>[\w.-]+))>\n(?=<description>\n)"),
    closing=re.compile(r"</(?P<key>[\w.-]+)>"),
    front=re.compile(r"<memory_blocks>\n(?:[^<\n][^\n]*\n)?\s*\Z"),
    back=re.compile(r"\s*</memory_blocks>"),
    inner=re.compile(r"<(?P<child>value)>"),
    repeats="no",
)

TAGGED: Final = Shape(
    name="tagged",
    starts=("<doc", "<source", "<passage", "<snippet", "<article", "<memory", "<context_item", "<file "),
    head=re.compile(
        r"<(?P<key>(?P<alike>doc|document|source|passage|snippet|article|memory|context_item"
        rf"|file(?=\s+(?:path|name)=)))(?![\w-]){_ATTRIBUTES}>"
    ),
    closing=re.compile(r"</(?P<key>doc|document|source|passage|snippet|article|memory|context_item|file)>"),
    back=_LINE_ENDS,
    inner=_CHILD,
    ranked=True,
    repeats="keep-label",
)
"""Documents between tags, as many applications write them: ``<document id="3" title="...">...</document>``.

Not in it: tags whose order tells something (``<page>``, ``<chunk>``, ``<step>``, ``<message>``, ``<example>``), and
hits without a number (``<result>``)."""

TAGGED_SHAPES: Final = (
    OPEN_WEBUI_RAG,
    ANTHROPIC_DOCUMENTS_XML,
    FLOWISE,
    PERPLEXICA,
    LIBRECHAT_RAG_CONTEXT,
    LIBRECHAT_FULL_CONTEXT,
    LETTA,
    TAGGED,
)
