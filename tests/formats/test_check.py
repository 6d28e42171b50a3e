"""The test that users' recognisers pass fails on each way to be wrong."""

from __future__ import annotations

import doctest
import re

import pytest

from prefixpilot.apis.base import Segment
from prefixpilot.errors import InvariantError
from prefixpilot.formats import base, check, json_spans
from prefixpilot.formats.base import Edges, Region, Unit
from prefixpilot.formats.check import check_recogniser, check_regions
from prefixpilot.pieces import Span

TEXT = "Lines:\n* one\n* two\n* three\nend"
BODIES = ["one", "two", "three"]


class Stars:
    """Lines that begin with a star."""

    name = "stars"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        if segment.sealed:
            return ()
        lines = list(re.finditer(r"(?m)^\* (.*)$", segment.text))
        units = tuple(Unit(Span(*line.span()), Span(*line.span(1)), line[1]) for line in lines)
        return (Region("stars", units, True, False, "safe"),) if len(units) > 1 else ()


class Careless(Stars):
    """Looks at the character behind the last line."""

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        assert segment.text[segment.text.index("end") + 2] == "d"
        return super().find(segment, edges)


class Unsealed(Stars):
    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        return super().find(Segment(segment.pointer, segment.text, "user", 0), edges)


class Settled(Stars):
    """Knows its units in one order only."""

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        return super().find(segment, edges) if "* one\n* two" in segment.text else ()


@pytest.mark.parametrize("module", [base, check, json_spans])
def test_examples(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_a_right_one_passes() -> None:
    check_recogniser(Stars(), TEXT, BODIES)


@pytest.mark.parametrize(
    ("recogniser", "bodies", "words"),
    [
        (Stars(), BODIES[:2], "finds the bodies"),
        (Careless(), BODIES, "raises ValueError"),
        (Unsealed(), BODIES, "sealed"),
        (Settled(), BODIES, "changed places"),
    ],
)
def test_a_wrong_one_fails(recogniser: Stars, bodies: list[str], words: str) -> None:
    with pytest.raises(InvariantError, match=words):
        check_recogniser(recogniser, TEXT, bodies)


def unit(start: int, end: int, text: str, body: tuple[int, int] | None = None) -> Unit:
    return Unit(Span(start, end), Span(*(body or (start, end))), text)


@pytest.mark.parametrize(
    "regions",
    [
        [Region("r", (), False, False, "no")],
        [Region("r", (unit(0, 2, "ab"),), True, False, "no")],
        [Region("r", (unit(0, 2, "ab"), unit(1, 3, "bc")), True, False, "no")],
        [Region("r", (unit(2, 4, "cd"),), False, False, "no"), Region("r", (unit(0, 2, "ab"),), False, False, "no")],
        [Region("r", (unit(0, 9, "abcdef"),), False, False, "no")],
        [Region("r", (unit(0, 0, ""),), False, False, "no")],
        [Region("r", (unit(0, 2, "abc", (0, 3)),), False, False, "no")],
        [Region("r", (unit(0, 2, "xy"),), False, False, "no")],
        [Region("r", (unit(0, 2, "xy"),), False, False, "no", "json")],
    ],
)
def test_regions_that_are_not_well_formed(regions: list[Region]) -> None:
    with pytest.raises(InvariantError):
        check_regions("abcdef", regions)


def test_a_body_in_json_is_compared_decoded() -> None:
    text = '{"text": "a\\nb"}'
    check_regions(text, [Region("r", (unit(0, len(text), "a\nb", (10, 14)),), False, False, "no", "json")])
    with pytest.raises(InvariantError, match="not its body"):  # cut in the midst of an escape
        check_regions(text, [Region("r", (unit(0, len(text), "a", (10, 12)),), False, False, "no", "json")])
