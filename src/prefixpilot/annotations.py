"""The only place where prompt wording lives (paper 5.3 and 6). Every template can be replaced."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from prefixpilot.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Templates:
    """Wording of everything we add to a prompt. Placeholders are those of ``str.format``.

    Attributes:
        name: what a block is called, from its number in the conversation or its id: ``{number}``.
        label: how a name is written in the prompt: ``{name}``.
        order: the order annotation, after the blocks and before the question: ``{labels}``.
        order_of_top: the same where it names the most relevant blocks only: ``{labels}``.
        separator: between the labels of the order annotation, most relevant first.
        earlier: the location annotation of a block that an earlier turn holds: ``{label}``.
        above: the location annotation of a block that stands earlier in the same message: ``{label}``.
        repeat: stands in the place of a text that stands earlier in the prompt, named in words that stand there too:
            ``{name}``.
        run: the same for a long part of a text: ``{name}`` of the other text, and the words with which the part begins
            and ends, ``{first}`` and ``{last}``.
        ranking: the order annotation of documents that an application has put into a string under names of its own,
            behind the last of them: ``{labels}``.
        exact_time: the words of the system text that tell the exact time, at the end of the newest message: ``{text}``.
        time_moved: what stands in the system text in their place where no date remains.

    Raises:
        ConfigError: a template lacks a placeholder or has another one.
    """

    name: str = "Doc {number}"
    label: str = "[{name}]"
    order: str = "Please read the context in the following priority order: {labels} and answer the question."
    order_of_top: str = (
        "Please read the context in the following priority order: {labels}, then the rest, and answer the question."
    )
    separator: str = " > "
    earlier: str = "Please refer to {label} in the previous conversation."
    above: str = "Please refer to {label} above."
    repeat: str = "[Unchanged: same text as {name} above.]"
    run: str = '[Unchanged: as in {name} above, from "{first}" to "{last}".]'
    ranking: str = "[In order of relevance: {labels}]"
    exact_time: str = "[{text}]"
    time_moved: str = "(see the newest message)"

    def __post_init__(self) -> None:
        for attribute, placeholders in _PLACEHOLDERS.items():
            written = " and ".join(f"{{{placeholder}}}" for placeholder in placeholders)
            template, remedy = getattr(self, attribute), f"write a str with {written} exactly once"
            try:
                found = [tuple(rest) for _, *rest in string.Formatter().parse(template) if rest[0] is not None]
            except (ValueError, TypeError) as error:
                raise ConfigError(f"templates.{attribute}", str(error), remedy) from None
            if sorted(found) != [(placeholder, "", None) for placeholder in placeholders]:
                raise ConfigError(f"templates.{attribute}", f"is {template!r}", remedy)
        for attribute in ("separator", "time_moved"):
            if not isinstance(getattr(self, attribute), str):
                raise ConfigError(f"templates.{attribute}", f"is {getattr(self, attribute)!r}", "write a str")


_PLACEHOLDERS = {
    "name": ("number",),
    "label": ("name",),
    "order": ("labels",),
    "order_of_top": ("labels",),
    "earlier": ("label",),
    "above": ("label",),
    "repeat": ("name",),
    "run": ("first", "last", "name"),
    "ranking": ("labels",),
    "exact_time": ("text",),
}
"""Of each template, sorted."""

DEFAULT_TEMPLATES = Templates()


LABEL_BYTES: Final = 14
"""What a label costs beyond its length, in bytes of prose: each of its marks and digits is a token of its own."""


def order_annotation(names: Sequence[str], templates: Templates = DEFAULT_TEMPLATES, *, rest: bool = False) -> str:
    """The order annotation over block names, at least one, most relevant first (paper 5.3); ``rest``: there are others.

    >>> order_annotation(["Doc 2", "Doc 1", "Doc 4"])
    'Please read the context in the following priority order: [Doc 2] > [Doc 1] > [Doc 4] and answer the question.'
    >>> order_annotation(["Doc 2"], rest=True)
    'Please read the context in the following priority order: [Doc 2], then the rest, and answer the question.'
    """
    order = templates.order_of_top if rest else templates.order
    before, between, behind = _around_names(templates.label, templates.separator, order)
    return f"{before}{between.join(names)}{behind}"


def location_annotation(name: str, *, earlier_turn: bool, templates: Templates = DEFAULT_TEMPLATES) -> str:
    """The location annotation for a block that stands earlier in the prompt (paper 6).

    >>> location_annotation("Doc 1", earlier_turn=True)
    'Please refer to [Doc 1] in the previous conversation.'
    """
    template = templates.earlier if earlier_turn else templates.above
    return template.format(label=written_label(name, templates))


def repeat_annotation(name: str, templates: Templates = DEFAULT_TEMPLATES) -> str:
    """What stands in the place of a text that stands earlier in the prompt under ``name``.

    >>> repeat_annotation(result_name("read_file", '{"path": "a.py"}'))
    '[Unchanged: same text as the latest result of read_file({"path": "a.py"}) above.]'
    """
    return templates.repeat.format(name=name)


def run_annotation(name: str, first: str, last: str, templates: Templates = DEFAULT_TEMPLATES) -> str:
    """What stands in the place of a part of a text that stands inside an earlier text of this name, between the words
    ``first`` and ``last``, both included.

    >>> run_annotation("fees.pdf", "The fee is due in", "once a year, in full.")
    '[Unchanged: as in fees.pdf above, from "The fee is due in" to "once a year, in full.".]'
    """
    return templates.run.format(name=name, first=first, last=last)


def result_name(tool: str, arguments: str) -> str:
    """How a tool's result is named: by its call, as the model wrote it."""
    return f"the latest result of {tool}({arguments})"


def text_name(label: str | None, opening: str = "") -> str:
    """How a text is named: by the label that stands on it, the words with which it begins, or both.

    >>> text_name("Source 3"), text_name(None, "The fee is"), text_name("Source 3", "The fee is")
    ('Source 3', 'the text that begins "The fee is"', 'Source 3 that begins "The fee is"')
    """
    if label is not None:
        return f'{label} that begins "{opening}"' if opening else label
    return f'the text that begins "{opening}"'


def ranking_annotation(names: Sequence[str], templates: Templates = DEFAULT_TEMPLATES, *, rest: bool = False) -> str:
    """The order annotation over labels that stand in the prompt, most relevant first; ``rest``: there are others.

    >>> ranking_annotation(["fees.pdf", "map.md"], rest=True)
    '[In order of relevance: fees.pdf > map.md > the rest]'
    """
    return templates.ranking.format(labels=templates.separator.join([*names, "the rest"] if rest else names))


def block_name(number: int | str | bytes, templates: Templates = DEFAULT_TEMPLATES) -> str:
    """What a block is called, from its number in the conversation or its id; bytes as UTF-8, the rest escaped.

    >>> block_name(3)
    'Doc 3'
    >>> block_name(b"a\\xff")
    'Doc a\\\\xff'
    """
    if isinstance(number, bytes):
        number = number.decode("utf-8", "backslashreplace")
    return _filled(templates.name, "number", number)


def block_names(first: int, count: int, templates: Templates = DEFAULT_TEMPLATES) -> tuple[str, ...]:
    """The names of blocks that are counted on from ``first``.

    >>> block_names(2, 2)
    ('Doc 2', 'Doc 3')
    """
    return _counted(templates.name, first, count)


def free_number(first: int, count: int, texts: Iterable[str], templates: Templates = DEFAULT_TEMPLATES) -> int:
    """The number from which ``count`` blocks are counted on so that none of their labels stands in a text: ``first`` or
    the next that will do. A label that a document has written itself would name two places.

    O(characters of the texts), and next to nothing where none has the character with which labels begin.

    >>> free_number(1, 2, ["as [Doc 2] says"]), free_number(1, 2, ["see Doc 2"])
    (3, 1)
    """
    opening, closing = _label_parts(templates)
    sign = opening[:1]
    said: set[int] = set()
    for text in texts:
        if sign in text and opening in text:
            said.update(map(int, _said(opening, closing).findall(text)))
    for number in sorted(said):
        if first <= number < first + count:
            first = number + 1
    return first


def written_label(name: str, templates: Templates = DEFAULT_TEMPLATES) -> str:
    """A name as it is written in the prompt.

    >>> written_label("Doc 3")
    '[Doc 3]'
    """
    return _filled(templates.label, "name", name)


def estimate_annotation_tokens(text: str, templates: Templates = DEFAULT_TEMPLATES) -> int:
    """Length of an annotation in tokens, estimated: a token per four bytes, and 3.5 more for each label. O(length).

    Of SmolLM2's tokenizer it is within 16 % for 5 labels and more; see docs/decisions/0009.

    >>> estimate_annotation_tokens(order_annotation(["Doc 2", "Doc 1", "Doc 4"]))
    38
    """
    opening, _ = _parts(templates.label)
    labels = text.count(opening) if opening else text.count(templates.separator) + 1
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-(size + LABEL_BYTES * labels) // 4)


@lru_cache(maxsize=4096)
def _filled(template: str, placeholder: str, value: int | str) -> str:
    """The few texts that every plan is made of, kept: formatting them took a fifth of the time of a plan."""
    return template.format(**{placeholder: value})


@lru_cache(maxsize=64)
def _parts(template: str) -> tuple[str, str]:
    """What stands before and after the one placeholder of a template."""
    pieces = list(string.Formatter().parse(template))
    behind = 1 + next(i for i, (_, name, *_) in enumerate(pieces) if name is not None)
    before, after = pieces[:behind], pieces[behind:]
    return "".join(literal for literal, *_ in before), "".join(literal for literal, *_ in after)


@lru_cache(maxsize=64)
def _around_names(label: str, separator: str, order: str) -> tuple[str, str, str]:
    """What stands before, between and behind the names of an order annotation."""
    (before, after), (opening, closing) = _parts(label), _parts(order)
    return opening + before, after + separator + before, after + closing


@lru_cache(maxsize=64)
def _label_parts(templates: Templates) -> tuple[str, str]:
    """What stands before and after the number of a written label."""
    (before, after), (opening, closing) = _parts(templates.name), _parts(templates.label)
    return opening + before, after + closing


@lru_cache(maxsize=64)
def _said(opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(opening)}([1-9][0-9]{{0,8}}){re.escape(closing)}")


@lru_cache(maxsize=512)
def _counted(template: str, first: int, count: int) -> tuple[str, ...]:
    return tuple([template.format(number=number) for number in range(first, first + count)])
