"""Files in code fences, each under its path: the path is the line above the fence, or stands behind its back-ticks.

Code may hold fences of its own. A fence with a language or path behind its back-ticks opens, a bare one closes what was
opened last; a longer fence is closed by one as long only. Where that does not come out even, nothing is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Region, Unit
from prefixpilot.formats.heads import line_starts
from prefixpilot.formats.marks import MarkGroups
from prefixpilot.formats.shape import Shape
from prefixpilot.pieces import Span

_FENCE: Final = re.compile(r"(?m)^(?P<ticks>`{3,})(?P<info>[^`\n]*)$")
_INFO: Final = re.compile(r"(?:[\w+#-]+ )?(?P<path>\S+)(?P<lines> \(\d+-\d+\))?")
_BLANK_BEHIND: Final = re.compile(r"[ \t]*(?:\n[ \t]*(?:\n|\Z)|\Z)")
_BLANK_ABOVE: Final = re.compile(r"(?:\A|\n[ \t]*\n|:\n)\Z")
_GAP: Final = re.compile(r"\n{1,3}")
_BARE_NAMES: Final = frozenset({"Makefile", "Dockerfile", "LICENSE", "Containerfile", "Gemfile", "Procfile"})

AIDER_TAGS: Final = Shape(
    name="aider",
    starts=(),
    behind=("\n",),
    probes=("\n<source>\n", "\n<code>\n", "\n<pre>\n", "\n<codeblock>\n", "\n<sourcecode>\n"),
    head=re.compile(r"(?m)^(?P<label>[^\s`<>:]+)\n<(?P<key>source|code|pre|codeblock|sourcecode)>\n"),
    closing=re.compile(r"(?m)^</(?P<key>source|code|pre|codeblock|sourcecode)>$"),
    back=_BLANK_BEHIND,
)
"""What aider writes in the place of back-ticks when a file holds those."""


class _Fence(NamedTuple):
    """A fence with what stands in it. ``path`` is ``None`` where no path names it."""

    span: Span
    inside: Span
    path: str | None
    ticks: int
    path_above: bool


@dataclass(frozen=True, slots=True)
class FenceRecogniser:
    """Runs of fenced files. Not movable lines of code: whole files, or whole snippets with their path and lines.

    Attributes:
        name: of the format.
        path_above: the path is the line above the fence (aider), not behind the back-ticks (Continue).
    """

    roles: ClassVar[tuple[Role, ...]] = ("system", "user")
    marks: ClassVar[MarkGroups] = (("\n```",),)

    name: str
    path_above: bool

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        if segment.sealed or segment.role not in self.roles:
            return ()
        fences = _fences(segment.text)
        return tuple(self._region(segment.text, run) for run in self._runs(segment.text, fences))

    def _runs(self, text: str, fences: Sequence[_Fence]) -> Iterator[list[_Fence]]:
        run: list[_Fence] = []
        for fence in fences:
            ours = fence.path is not None and fence.path_above == self.path_above
            if ours and _joined(text, run, fence):
                run.append(fence)
                continue
            yield from _proved(text, run[:-1])
            run = [fence] if ours and _BLANK_ABOVE.search(text, max(0, fence.span.start - 80), fence.span.start) else []
        yield from _proved(text, run)

    def _region(self, text: str, run: Sequence[_Fence]) -> Region:
        units = [
            Unit(fence.span, fence.inside, text[fence.inside.start : fence.inside.end], fence.path) for fence in run
        ]
        return Region(self.name, tuple(units), movable=True, ranked=False, repeats="safe")


def _joined(text: str, run: Sequence[_Fence], fence: _Fence) -> bool:
    """Whether a fence goes on with a run: as many back-ticks, and the same empty lines between."""
    if not run or fence.ticks != run[-1].ticks:
        return False
    between = text[run[-1].span.end : fence.span.start]
    first = text[run[0].span.end : run[1].span.start] if len(run) > 1 else between
    return between == first and _GAP.fullmatch(between) is not None


def _proved(text: str, run: list[_Fence]) -> Iterator[list[_Fence]]:
    """The run, if it is one. The end of its last fence must be followed by a blank line, or else it is left out."""
    kept = run if run and _BLANK_BEHIND.match(text, run[-1].span.end) else run[:-1]
    if len(kept) > 1:
        yield kept


def _fences(text: str) -> list[_Fence]:
    """All fences that stand in no other, in order; none at all if one is not closed."""
    found: list[_Fence] = []
    open_: list[re.Match[str]] = []
    for place in line_starts("```", text):
        mark = _FENCE.match(text, place)
        if mark is None:
            continue
        opens = bool(mark["info"].strip())
        if not open_:
            open_.append(mark)
        elif len(mark["ticks"]) < len(open_[-1]["ticks"]):
            continue
        elif opens:
            open_.append(mark)
        else:
            opener = open_.pop()
            if not open_:
                found.append(_fence(text, opener, mark))
    return [] if open_ else found


def _fence(text: str, opener: re.Match[str], closer: re.Match[str]) -> _Fence:
    start = opener.end() + 1
    inside = Span(start, max(start, closer.start() - 1))
    words, ticks = opener["info"].strip(), len(opener["ticks"])
    if words:
        info = _INFO.fullmatch(words)
        path = words if info and _is_path(info["path"]) else None
        return _Fence(Span(opener.start(), closer.end()), inside, path, ticks, path_above=False)
    line = text.rfind("\n", 0, max(opener.start() - 1, 0)) + 1
    above = text[line : max(opener.start() - 1, 0)]
    if not _is_path(above):
        return _Fence(Span(opener.start(), closer.end()), inside, None, ticks, path_above=True)
    return _Fence(Span(line, closer.end()), inside, above, ticks, path_above=True)


def _is_path(word: str) -> bool:
    """Whether a word names a file: no blank in it, and a dot or slash, but no end of a sentence."""
    if word in _BARE_NAMES:
        return True
    whole = bool(word) and not any(char.isspace() for char in word)
    marked = any(mark in word for mark in "./\\") and not any(mark in word for mark in "<>|*`")
    return whole and marked and word[-1] not in ".:/\\" and word[0] not in "#-"
