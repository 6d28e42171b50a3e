"""Blocks as a Python program gives them: in any form, with what is demanded of their order, or an error with a name."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.constraints import UNCONSTRAINED
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts.blocks import Block, given_blocks, plain_text, read_blocks

ROME = ContextBlock("Rome is old.", title="Age")


def test_every_form_is_a_block() -> None:
    blocks: list[Block] = ["One.", {"text": "Two.", "id": 7}, ROME, {"text": "Four.", "title": ""}]
    given = given_blocks(iter(blocks))
    assert given.blocks == (ContextBlock("One."), ContextBlock("Two.", 7), ROME, ContextBlock("Four."))
    assert given.constraints is UNCONSTRAINED


def test_groups_and_pins_are_read_from_objects_among_others() -> None:
    grouped = [{"text": text, "group": "g"} for text in "ab"]
    blocks, constraints = given_blocks([{"text": "c", "pin": "last"}, "d", *grouped, {"text": "e", "pin": "first"}])
    assert [block.text for block in blocks] == ["c", "d", "a", "b", "e"]
    assert (constraints.groups, constraints.first, constraints.last) == (((2, 3),), 4, 0)


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ("One.", "documents", "is one str"),
        (b"One.", "documents", "is one bytes"),
        ({"text": "One."}, "documents", "is one dict"),
        (7, "documents", "is one int"),
        ([7], "documents[0]", "is a number"),
        (["One.", ""], "documents[1]", "is empty"),
        ([{"txt": "One."}], "documents[0].txt", "is not a known key"),
        ([{"id": 1}], "documents[0].text", "is missing"),
        ([{"text": None}], "documents[0].text", "is null"),
        ([{"text": "One.", "id": True}], "documents[0].id", "is a boolean"),
        ([{"text": "One.", "title": 1}], "documents[0].title", "is a number"),
        ([{"text": "One.", "title": "a\nb"}], "documents[0].title", "has several lines"),
        ([{"text": "One.", "group": ""}], "documents[0].group", "is empty"),
        ([{"text": "One.", "group": 1}], "documents[0].group", "is a number"),
        (
            [{"text": "One.", "group": "g"}, "Two.", {"text": "Three.", "group": "g"}],
            "documents[2].group",
            "is 'g', as that of documents[0], which does not stand right before it",
        ),
        ([{"text": "One.", "pin": "top"}], "documents[0].pin", 'is "top"'),
        ([{"text": text, "pin": "first"} for text in "ab"], "documents[1].pin", "is 'first', as that of documents[0]"),
        (
            [{"text": "a", "group": "g"}, {"text": "b", "group": "g", "pin": "first"}],
            "documents[1].pin",
            None,
        ),
    ],
)
def test_what_cannot_be_used_is_named(given: Any, field: str, reason: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        given_blocks(given, "documents")
    assert caught.value.field == field
    assert caught.value.reason == (reason or caught.value.reason)
    assert caught.value.remedy


def test_a_body_has_a_list_or_null() -> None:
    assert read_blocks(None) == ()
    with pytest.raises(InvalidRequestError, match="context_blocks"):
        read_blocks("One.")


def test_a_block_without_a_text_is_shown_by_its_id() -> None:
    assert plain_text([ROME, ContextBlock(None, "doc-7")], 3) == "[Doc 3] Age\nRome is old.\n\n[Doc 4]\ndoc-7"
