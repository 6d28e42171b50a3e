"""What a turn knows of itself is found once, and is what it would be if it were found each time."""

from __future__ import annotations

import doctest
import re
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.prompts.headings import headings_of
from prefixpilot.proxy.memory import records, reply
from prefixpilot.proxy.memory.records import LedgerKey, Turn

from .support import key, said, turn

LINES = st.lists(
    st.sampled_from(
        ["[Doc 1] x", "[a[b]]", "[]", "[" + "y" * 80 + "]", "[" + "y" * 81 + "]", " [no]", "text", "[Doc 1]"]
    ),
    max_size=8,
).map("\n".join)


@given(LINES | st.text("[]a\n", max_size=30))
def test_headings_are_what_stands_in_brackets_at_the_beginning_of_lines(text: str) -> None:
    assert list(headings_of(text)) == re.findall(r"^\[([^\[\]\n]{1,80})\]", text, re.MULTILINE)


@given(st.integers(0, 400))
def test_few_headings_are_kept_and_counted_and_many_are_not(count: int) -> None:
    made = turn(["Q?"], None, ["x"])
    made = replace(made, text="\n".join(f"[{n}]" for n in range(count)), _headings=None)
    size = made.size
    assert len(made.headings) == count
    held = 0 if made._headings is None else sum(map(sys.getsizeof, made._headings)) + sys.getsizeof(made._headings)
    assert held <= 2048
    assert made.headings == headings_of(made.text)
    assert made.size == size


def test_a_turn_grows_with_its_replies_only() -> None:
    made = turn(["Q?"], None, ["some text", "another"])
    before = made.size
    made.add_reply(said("Yes."))
    assert made.size == before + reply.MAX_BYTES


def test_the_digest_of_a_key_is_no_part_of_what_it_is() -> None:
    one, other = key("one"), key("one")
    assert one.digest == other.digest != key("two").digest
    assert one == LedgerKey("default", "credential", "one", "on")
    assert hash(one) == hash(other)


def test_examples() -> None:
    assert doctest.testmod(records).failed == 0
    assert Turn.__slots__
