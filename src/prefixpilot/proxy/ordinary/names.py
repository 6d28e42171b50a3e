"""Which words mean one text alone among all that stands above in a prompt. Pure.

Words name a text if they stand nowhere above but inside of it: not in another document, its label or wrapper, not in a
tool call, an answer or a question. A reader who looks for them finds that text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from prefixpilot.proxy.memory.forms import NamedText

MAX_NAME: Final = 200
"""Characters of a call's arguments that are used as a name."""
MAX_LABEL: Final = 80
"""Characters of a label that is used as a name."""
MAX_LOOKED_FOR: Final = 256
"""New names looked for in one prompt: texts behind these stay in full. Names of recalled annotations do not count."""
MAX_SCANNED: Final = 1 << 24
"""Characters gone through one by one in one prompt, where a name has no rare word; those for recalled annotations
count. Behind these, too, new texts stay in full."""
_OPENINGS: Final = ((8, 80), (16, 160), (40, 320))
"""Words and characters of an opening: the first few, and more where another text begins like it."""
_LEAST_WORDS: Final = 3
_LEAST_CHARACTERS: Final = 12
"""Of an opening without three words: scripts that put no space between them."""
_UNQUOTABLE: Final = re.compile(r'["\\]')
_BRACKET: Final = re.compile(r"[\[\]{}<>]")
_LETTER: Final = re.compile(r"[^\W\d_]")
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_ESCAPED: Final = 6
"""Characters of an escape in an ASCII JSON text."""
_REACH: Final = 256
"""White space between words that is looked through."""
_RARE: Final = 16
"""Places of a word around which it pays to look, instead of going through all of a string."""
_SPACE: Final = r"(?:\s|\\[nrt])+"
"""Between words, also inside the quotes of a JSON string."""


class Owned(NamedTuple):
    """Characters ``start`` to ``end`` of a page that are a text with its label and wrapper."""

    start: int
    end: int
    digest: bytes


class Page(NamedTuple):
    """A string of the prompt as the client sent it, the texts in it, and whether it is one of the chain's
    (:mod:`prefixpilot.proxy.ordinary.chain`): where a form is recalled, these are the same as when it was made."""

    text: str
    owned: list[Owned]
    chained: bool


class Pages:
    """All strings above.

    ``open`` and ``own`` O(texts); ``alone`` and ``still_alone`` O(characters above): in most strings a search
    for one word.
    """

    def __init__(self) -> None:
        self._pages: list[Page] = []
        self._looked_for = 0
        self._scanned = 0

    def open(self, text: str, *, chained: bool = False) -> None:
        """A string comes next. All of it counts from here on, so that no name depends on how its units are moved."""
        self._pages.append(Page(text, [], chained))

    def own(self, texts: Iterable[NamedText]) -> None:
        """These texts stand in the newest string."""
        self._pages[-1].owned.extend(Owned(text.span.start, text.span.end, text.digest) for text in texts)

    def alone(self, words: str, digest: bytes) -> bool:
        """Whether these words stand above, and only in texts of this digest.

        Also ``False`` once :data:`MAX_LOOKED_FOR` or :data:`MAX_SCANNED` is reached.
        """
        self._looked_for += 1
        if self._looked_for > MAX_LOOKED_FOR or self._scanned > MAX_SCANNED:
            return False
        first = next(owns := self._owns(words, digest, self._pages), False)
        return first and all(owns)

    def still_alone(self, words: str, digest: bytes) -> bool:
        """The same where the chain is that of the prompt in which they were: only other strings are gone through."""
        return all(self._owns(words, digest, (page for page in self._pages if not page.chained)))

    def _owns(self, words: str, digest: bytes, pages: Iterable[Page]) -> Iterator[bool]:
        """Of each place where the words stand, whether it is in such a text."""
        needle = _needle(words)
        for page in pages:
            if any(key in page.text for key in needle.keys):
                rare = all(page.text.count(key) <= _RARE for key in needle.keys)
                self._scanned += 0 if rare else len(page.text)
                for start, end in _places(needle, page.text, rare):
                    yield _owns(page, start, end, digest)


def openings(text: str) -> tuple[str, ...]:
    """The words with which a text begins, up to a character that cannot be quoted, the fewest first.

    None if these are too few.

    >>> openings('The fee is "due" in May.'), openings('It "is"')
    (('The fee is',), ())
    """
    plain = _UNQUOTABLE.split(text[: 2 * _OPENINGS[-1][1]], maxsplit=1)[0].split()
    found = (_first(plain, words, characters) for words, characters in _OPENINGS)
    return tuple(dict.fromkeys(words for words in found if _enough(words)))


def is_label(label: str | None, text: str) -> bool:
    """Whether a label is a name: it stands in the text. A number alone is none, it may count anything.

    Nor are long words, or words with line breaks or brackets: they might be read as the end of what quotes them.

    >>> is_label("fees.pdf", "<fees.pdf>"), is_label("0", "<doc id='0'>"), is_label("row 1", '"n": 1')
    (True, False, False)
    """
    if label is None or len(label) > MAX_LABEL or len(label.splitlines()) != 1 or _BRACKET.search(label):
        return False
    return label in text and _LETTER.search(label) is not None


def _enough(words: str) -> bool:
    return words.count(" ") + 1 >= _LEAST_WORDS or (len(words) >= _LEAST_CHARACTERS and not words.isascii())


def _first(words: list[str], most: int, characters: int) -> str:
    """Whole words; of a first one that is too long its beginning."""
    taken = " ".join(words[:most])
    if len(taken) <= characters:
        return taken
    end = taken.rfind(" ", 0, characters + 1)
    return taken[: end if end > 0 else characters]


class _Needle(NamedTuple):
    """What is looked for: one of ``keys`` stands wherever ``pattern`` matches, all within ``reach``."""

    keys: tuple[str, ...]
    reach: int
    pattern: re.Pattern[str]
    left: bool
    right: bool


@lru_cache(maxsize=2048)
def _needle(words: str) -> _Needle:
    pieces = words.split()
    keys = _keys(pieces)
    reach = _REACH + _ESCAPED * len(words)
    return _Needle(keys, reach, re.compile(_SPACE.join(map(_pattern, pieces))), words[0] in _WORD, words[-1] in _WORD)


def _keys(pieces: list[str]) -> tuple[str, ...]:
    """The longest ASCII word; where there is none the longest word, also as an ASCII JSON text has it."""
    plain = max((piece for piece in pieces if piece.isascii()), key=len, default="")
    longest = max(pieces, key=len)
    return (plain,) if plain else (longest, json.dumps(longest)[1:-1])


def _pattern(piece: str) -> str:
    """A word, also as an ASCII JSON text has it."""
    return "".join(
        re.escape(letter) if letter.isascii() else f"(?:{re.escape(letter)}|{re.escape(json.dumps(letter)[1:-1])})"
        for letter in piece
    )


def _places(needle: _Needle, text: str, rare: bool) -> Iterator[tuple[int, int]]:
    """Where the words stand, not as a part of longer ones."""
    for match in _around_keys(needle, text) if rare else needle.pattern.finditer(text):
        if _apart(needle, text, *match.span()):
            yield match.span()


def _around_keys(needle: _Needle, text: str) -> Iterator[re.Match[str]]:
    """Around the places of the longest word, which are found much faster."""
    done = 0
    for hit in sorted(hit for key in needle.keys for hit in _hits(key, text)):
        if hit < done:
            continue
        match = needle.pattern.search(text, max(done, hit - needle.reach), hit + needle.reach)
        if match is not None:
            yield match
            done = match.end()


def _hits(key: str, text: str) -> Iterator[int]:
    hit = text.find(key)
    while hit >= 0:
        yield hit
        hit = text.find(key, hit + 1)


def _apart(needle: _Needle, text: str, start: int, end: int) -> bool:
    inside = needle.left and start and text[start - 1] in _WORD and not _escape(text, start - 1)
    return not inside and not (needle.right and text[end : end + 1] in _WORD)


def _escape(text: str, at: int) -> bool:
    """Whether a letter is that of a line break or tab inside a JSON string."""
    return text[at] in "nrt" and text[at - 1 : at] == "\\"


def _owns(page: Page, start: int, end: int, digest: bytes) -> bool:
    return any(owned.digest == digest and owned.start <= start and end <= owned.end for owned in page.owned)
