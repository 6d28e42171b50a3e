"""What tells the pages below one parent apart: their tokens, their adapter, and what else is part of their name."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

PageKey: TypeAlias = bytes
"""Equal for two pages of one size below one parent if and only if they hold the same: see :func:`page_keys`."""

_AS_IT_IS: Final = 64
"""Bytes up to which the tokens themselves are the key."""


def page_keys(
    token_ids: Sequence[int], page_size: int, extra_keys: Sequence[Hashable] = (), adapter: str | None = None
) -> Iterator[PageKey]:
    """The keys of the full pages of a prompt, one by one. O(tokens).

    A short page's key is its tokens as bytes, a longer one's a 128-bit BLAKE2b digest of them: for pages of one size
    two keys are equal if and only if the tokens are, but for a chance of 2**-64 among 2**32 pages. An adapter and
    extra keys are hashed with the tokens.

    Args:
        token_ids: any ints; a last page that is not full has no key.
        page_size: tokens in a page; at least 1.
        extra_keys: for each page, as far as there are any (see :class:`~prefixpilot.cache_events.PagesStored`). vLLM
            repeats the adapter's name in them; it counts once here.
    """
    pages = _pages(token_ids, page_size)
    if adapter is None and not any(extra_keys):
        return pages
    return _marked(pages, extra_keys, adapter)


def _pages(token_ids: Sequence[int], page_size: int) -> Iterator[PageKey]:
    end = len(token_ids) - page_size + 1
    try:
        tokens = array("I", token_ids)
    except (OverflowError, TypeError):
        for start in range(0, end, page_size):
            yield _unusual(token_ids[start : start + page_size])
        return
    step = page_size * tokens.itemsize
    data = tokens.tobytes()
    starts = range(0, end * tokens.itemsize, step)
    if step <= _AS_IT_IS:
        for start in starts:
            yield data[start : start + step]
    else:
        for start in starts:
            yield _digest(b"t", data[start : start + step])


def _unusual(page: Sequence[int]) -> PageKey:
    """A page of a prompt in which some token does not fit 32 bits; this page may be an ordinary one."""
    try:
        tokens = array("I", page).tobytes()
    except (OverflowError, TypeError):
        return _digest(b"w", repr(list(page)).encode())
    return tokens if len(tokens) <= _AS_IT_IS else _digest(b"t", tokens)


def _marked(pages: Iterator[PageKey], extra_keys: Sequence[Hashable], adapter: str | None) -> Iterator[PageKey]:
    known = len(extra_keys)
    for number, key in enumerate(pages):
        extra = extra_keys[number] if number < known else None
        if isinstance(extra, tuple):
            extra = tuple(item for item in extra if item != adapter) or None
        if extra is None and adapter is None:
            yield key
        else:
            yield _digest(b"x", repr((adapter, extra, key)).encode())


def _digest(kind: bytes, data: bytes) -> PageKey:
    """A digest that begins with its kind: its length, 17, is no multiple of a token's, so it equals no plain key."""
    return kind + blake2b(data, digest_size=16, person=kind).digest()
