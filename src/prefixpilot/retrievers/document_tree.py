"""Documents as trees of sections: read from Markdown or from PageIndex, kept, and given out as blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from prefixpilot.core import ContextBlock
from prefixpilot.dedup.fences import fences
from prefixpilot.errors import InvalidRequestError
from prefixpilot.retrievers.saved import SavedIndex, damaged, read_index

KIND = "document-tree"
_HEADING = re.compile(r"^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A section and those below it.

    Attributes:
        title: its heading.
        text: its own, without that of the sections below; may be empty.
        summary: what it is about: for choosing, never sent.
        sections: below it, in the order of the document.
        id: its name, unique in a tree; by default its number: ``2.1``.
    """

    title: str
    text: str = ""
    summary: str = ""
    sections: tuple[Section, ...] = ()
    id: str | None = None


class Node(NamedTuple):
    """A section in its place.

    Attributes:
        id: the section's, or its number.
        path: the titles from the root to it.
        summary: see :class:`Section`.
        text: its own.
        children: positions in :attr:`DocumentTree.nodes`.
    """

    id: str
    path: tuple[str, ...]
    summary: str
    text: str
    children: tuple[int, ...]

    @property
    def block(self) -> ContextBlock | None:
        """What stands in a prompt: the path as title, and the text; ``None`` where there is no text."""
        title = " > ".join(name for name in self.path if name)
        return ContextBlock(self.text, id=self.id, title=title or None) if self.text.strip() else None


class DocumentTree:
    """Sections of one document, or of many side by side. Frozen once made.

    Attributes:
        sections: as given.
        nodes: all of them, in the order of the document.
        roots: positions of the topmost ones.
    """

    def __init__(self, sections: Iterable[Section]) -> None:
        """O(sections).

        Raises:
            InvalidRequestError: no section has a text, or two have one id.
        """
        self.sections = tuple(sections)
        nodes: list[Node] = []
        self.roots = _add(nodes, self.sections, (), "")
        self.nodes = tuple(nodes)
        self._by_id = {node.id: node for node in nodes}
        if len(self._by_id) < len(nodes):
            raise InvalidRequestError("sections", "have an id twice", "give each its own, or none")
        if not any(node.text.strip() for node in nodes):
            raise InvalidRequestError("sections", "have no text", "give at least one section with a text")

    @classmethod
    def from_markdown(cls, text: str) -> DocumentTree:
        """Sections by ``#`` headings; what stands in code fences is text. Text above the first heading has no title.

        Raises:
            InvalidRequestError: there is no text but headings.
        """
        return cls(_sections(list(_marked(text))))

    @classmethod
    def from_pageindex(cls, structure: Sequence[Mapping[str, Any]]) -> DocumentTree:
        """The member ``structure`` of a PageIndex file: ``title``, ``node_id``, ``summary``, ``text``, ``nodes``.

        PageIndex has to be told to keep the texts. What it writes for PDF files gives a section the pages of those
        below it, too: there, ask for few and small ones.

        Raises:
            InvalidRequestError: it is none, or has no texts.
        """
        return cls(_of_pageindex(structure, "structure"))

    def blocks(self, ids: Iterable[str]) -> tuple[ContextBlock, ...]:
        """The blocks of sections that were chosen by their ids; those without text have none.

        Raises:
            InvalidRequestError: there is no such section.
        """
        chosen = list(ids)
        for name in chosen:
            if name not in self._by_id:
                raise InvalidRequestError("ids", f"{name!r} is no section", "give ids that stand in outline()")
        found = [self._by_id[name].block for name in chosen]
        return tuple([block for block in found if block is not None])

    def outline(self) -> str:
        """Ids, titles and summaries, a line each, indented: what a model can choose from."""
        return "\n".join(
            f"{'  ' * (len(node.path) - 1)}[{node.id}] {node.path[-1]}{': ' if node.summary else ''}{node.summary}"
            for node in self.nodes
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file. Raises RetrieverError."""
        SavedIndex(KIND, (), {"sections": [asdict(section) for section in self.sections]}, {}).write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentTree:
        """Read what :meth:`save` wrote.

        Raises:
            RetrieverError: see :func:`prefixpilot.retrievers.saved.read_index`.
        """
        try:
            return cls([_of_plain(section) for section in read_index(path, KIND).facts["sections"]])
        except (LookupError, TypeError, ValueError) as error:
            raise damaged(path, error) from error


def _add(nodes: list[Node], sections: Iterable[Section], above: tuple[str, ...], number: str) -> tuple[int, ...]:
    """Append sections and all below them, each before its own; their positions."""
    positions = []
    for count, section in enumerate(sections, 1):
        here, path = f"{number}{count}", (*above, section.title)
        positions.append(len(nodes))
        nodes.append(Node(section.id or here, path, section.summary, section.text, ()))
        children = _add(nodes, section.sections, path, f"{here}.")
        nodes[positions[-1]] = nodes[positions[-1]]._replace(children=children)
    return tuple(positions)


class _Marked(NamedTuple):
    """A heading and the text up to the next one; level 0 is text above all headings."""

    level: int
    title: str
    text: str


def _marked(text: str) -> Iterator[_Marked]:
    fenced = fences(text)
    headings = [
        found for found in _HEADING.finditer(text) if not any(part.start <= found.start() < part.end for part in fenced)
    ]
    preamble = text[: headings[0].start()] if headings else text
    if preamble.strip():
        yield _Marked(0, "", preamble.strip("\n"))
    ends = [*(found.start() for found in headings[1:]), len(text)]  # one too many where there is no heading
    for found, end in zip(headings, ends, strict=False):
        yield _Marked(len(found[1]), found[2] or "", text[found.end() : end].strip("\n"))


def _sections(marked: list[_Marked]) -> tuple[Section, ...]:
    """A heading takes all that follow it with a higher level."""
    sections = []
    while marked:
        first = marked.pop(0)
        below = next((i for i, other in enumerate(marked) if other.level <= first.level), len(marked))
        if not first.level:
            below = 0
        sections.append(Section(first.title, first.text, sections=_sections(marked[:below])))
        del marked[:below]
    return tuple(sections)


def _of_pageindex(nodes: object, field: str) -> tuple[Section, ...]:
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise InvalidRequestError(field, f"is {type(nodes).__name__}", "give a list of PageIndex nodes")
    return tuple([_of_node(node, f"{field}[{position}]") for position, node in enumerate(nodes)])


def _of_node(node: object, field: str) -> Section:
    if not isinstance(node, Mapping) or not isinstance(node.get("title"), str):
        raise InvalidRequestError(field, "has no title", "give a PageIndex node")
    summary = node.get("summary") or node.get("prefix_summary") or ""
    name = node.get("node_id")
    below = _of_pageindex(node.get("nodes") or [], f"{field}.nodes")
    return Section(node["title"], str(node.get("text") or ""), str(summary), below, None if name is None else str(name))


def _of_plain(section: Mapping[str, Any]) -> Section:
    return Section(**{**section, "sections": tuple([_of_plain(below) for below in section["sections"]])})
