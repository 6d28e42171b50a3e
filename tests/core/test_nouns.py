"""Floor 0: nouns, settings, wording and errors."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import prefixpilot.annotations
import prefixpilot.blocks.identity
import prefixpilot.dedup.blocks
import prefixpilot.distance.scalar
import prefixpilot.ordering
import prefixpilot.pilot.context_pilot
import prefixpilot.scheduling
from prefixpilot import ContextBlock, PilotConfig, Request, Templates
from prefixpilot.annotations import location_annotation, order_annotation
from prefixpilot.core import PlannedBlock, RequestId
from prefixpilot.errors import (
    ConfigError,
    InvalidInputError,
    InvalidRequestError,
    MissingExtraError,
    PrefixPilotError,
    TraceError,
)


@pytest.mark.parametrize(
    "module",
    [
        prefixpilot.annotations,
        prefixpilot.blocks.identity,
        prefixpilot.dedup.blocks,
        prefixpilot.distance.scalar,
        prefixpilot.ordering,
        prefixpilot.pilot.context_pilot,
        prefixpilot.scheduling,
    ],
)
def test_examples_in_docstrings(module: Any) -> None:
    if not module.__file__.endswith(".py"):
        pytest.skip("mypyc keeps no docstrings of functions; the sources beside it have them")
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "ContextBlock"),
        ({"text": 3}, "ContextBlock.text"),
        ({"id": 1.5}, "ContextBlock.id"),
        ({"id": True}, "ContextBlock.id"),
        ({"text": "a", "title": 3}, "ContextBlock.title"),
        ({"text": "a", "tokens": -1}, "ContextBlock.tokens"),
        ({"text": "a", "tokens": "3"}, "ContextBlock.tokens"),
        ({"text": "a", "tokens": True}, "ContextBlock.tokens"),
        ({"text": "a", "tokens": 10**5000}, "ContextBlock.tokens"),
    ],
)
def test_a_block_that_cannot_be_used(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ContextBlock(**arguments)
    assert caught.value.field == field
    assert caught.value.remedy in str(caught.value)


def test_a_request_needs_an_id_and_blocks() -> None:
    with pytest.raises(InvalidRequestError, match="request_id"):
        Request((), RequestId(""))
    with pytest.raises(InvalidRequestError, match=r"blocks\[1\].*from_texts"):
        Request((ContextBlock(id=1), "text"), RequestId("r"))  # type: ignore[arg-type]


def test_a_request_takes_any_iterable_of_blocks() -> None:
    assert Request([ContextBlock(id=1)], RequestId("r")).blocks == (ContextBlock(id=1),)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["blocks", "scope", "tenant", "conversation_id", "constraints"])
def test_a_request_names_the_field_that_has_a_wrong_type(name: str) -> None:
    fields: dict[str, Any] = {"blocks": (), "request_id": "r", name: 3}
    with pytest.raises(InvalidRequestError, match=rf"Request\.{name}"):
        Request(**fields)


def test_a_request_has_a_tenant() -> None:
    with pytest.raises(InvalidRequestError, match=r"Request\.tenant"):
        Request((), RequestId("r"), tenant=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["abc", b"abc", None, 3])
def test_a_request_is_made_of_a_list_not_of_letters(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"ids: is .* give a list of ids"):
        Request.from_ids("r", given)
    with pytest.raises(InvalidRequestError, match=r"texts: is .* give a list of texts"):
        Request.from_texts("r", given)


def test_requests_from_ids_and_from_texts() -> None:
    assert [b.id for b in Request.from_ids("r", [1, "a"]).blocks] == [1, "a"]
    request = Request.from_texts("r", ["x"], conversation_id="c")
    assert (request.blocks[0].text, request.conversation_id) == ("x", "c")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"alpha": 0.5}, "alpha"),
        ({"planner": "best"}, "planner"),
        ({"schedule": "random"}, "schedule"),
        ({"matcher": "x"}, "matcher"),
        ({"labels": "x"}, "labels"),
        ({"normalization": "x"}, "normalization"),
        ({"annotate": -1}, "annotate"),
        ({"annotate": True}, "annotate"),
        ({"annotate": "some"}, "annotate"),
        ({"gate": "no"}, "gate"),
        ({"max_displacement": -1}, "max_displacement"),
        ({"max_contexts": 0}, "max_contexts"),
        ({"max_blocks": 0}, "max_blocks"),
        ({"max_conversations": 0}, "max_conversations"),
        ({"cache_tokens": 0}, "cache_tokens"),
        ({"cache_tokens": 1.5}, "cache_tokens"),
        ({"max_contexts": True}, "max_contexts"),
        ({"alpha": "0.001"}, "alpha"),
        ({"templates": None}, "templates"),
    ],
)
def test_settings_that_cannot_be_used(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PilotConfig(**arguments)
    assert caught.value.field == field


def test_templates_can_be_replaced() -> None:
    german = Templates(order="Lies zuerst {labels}.", separator=", dann ", label="<{name}>", above="Siehe {label}.")
    assert order_annotation(["Doc 2", "Doc 1"], german) == "Lies zuerst <Doc 2>, dann <Doc 1>."
    assert location_annotation("Doc 2", earlier_turn=False, templates=german) == "Siehe <Doc 2>."


@pytest.mark.parametrize(
    "template", ["no placeholder", "{labels} {labels}", "{other}", "{labels", "{}", "{labels!r}", "{labels:>9}", 5]
)
def test_templates_need_their_placeholder_once(template: Any) -> None:
    with pytest.raises(ConfigError, match=r"templates\.order"):
        Templates(order=template)


def test_the_exception_tree() -> None:
    assert issubclass(InvalidInputError, ValueError) and issubclass(TraceError, PrefixPilotError)
    missing = MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"')
    assert isinstance(missing, ImportError) and missing.install in str(missing)


def test_plan_nouns_are_frozen() -> None:
    planned = PlannedBlock(1, ContextBlock(id=1), 0, "Doc 1", None, 1)
    with pytest.raises(AttributeError):
        planned.label = "Doc 2"  # type: ignore[misc]
