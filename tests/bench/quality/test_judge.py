"""A judge that is right, one that leans, one that rambles: what is counted of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prefixpilot.bench.quality.base import Scored
from prefixpilot.bench.quality.cases import Case, QualityArm
from prefixpilot.bench.quality.judge import Judge, Judged, judge_results, judged_markdown, verdict_of
from prefixpilot.bench.quality.runner import Result
from prefixpilot.errors import EngineError
from prefixpilot.testing.loopback import LoopbackServer

PROMPT = ({"role": "user", "content": "?"},)


def results(*answers: tuple[str, str]) -> list[Result]:
    """Of each case the answers of arrival and of order; "right" is the reference."""
    found = []
    for number, pair in enumerate(answers):
        case = Case(number, "How many?", ("right",), (), {"arrival": PROMPT, "order": PROMPT})
        arms: tuple[QualityArm, ...] = ("arrival", "order")
        found += [Result(case, arm, "", Scored(said, -1.0, 1, 1)) for arm, said in zip(arms, pair, strict=True)]
    return found


@contextmanager
def served(say: Callable[[str, str], str], asked: list[str]) -> Iterator[Judge]:
    async def answer(request: Request) -> Response:
        body = json.loads(await request.body())
        text = body["messages"][-1]["content"]
        asked.append(text)
        first, second = text.partition("Answer A: ")[2].split("\n\nAnswer B: ")
        return JSONResponse({"choices": [{"message": {"content": say(first, second)}}]})

    server = LoopbackServer(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]))
    try:
        yield Judge(server.start(), "a judge")
    finally:
        server.stop()


def fair(first: str, second: str) -> str:
    good = (first == "right") - (second == "right")
    return f"Let me see. VERDICT: {'TIE' if good == 0 else 'A' if good > 0 else 'B'}"


def test_a_fair_judge(tmp_path: Path) -> None:
    asked: list[str] = []
    given = results(("right", "right"), ("wrong", "right"), ("bad", "right"), ("right", "no"), ("x", "y"))
    with served(fair, asked) as judge:
        found = judge_results(judge, given, tmp_path, {})
        assert len(asked) == 8
        assert judge_results(judge, given, tmp_path, {}) == found
        assert len(asked) == 8
    (order,) = found
    assert (order.cases, order.same, order.better, order.worse, order.even, order.swayed) == (5, 1, 2, 1, 1, 0)
    assert order.net.value == pytest.approx(0.2)
    assert "| order | 5 | 1 | 2 | 1 | 1 | 0 | 0 | +0.200" in judged_markdown(found, "a judge")


@pytest.mark.parametrize(
    ("say", "counts"),
    [(lambda a, b: "Verdict: A", (0, 0, 2, 2, 0)), (lambda a, b: "I cannot tell.", (0, 0, 0, 0, 2))],
)
def test_a_judge_that_leans_or_rambles(tmp_path: Path, say: Callable[[str, str], str], counts: tuple[int, ...]) -> None:
    with served(say, []) as judge:
        (order,) = judge_results(judge, results(("right", "no"), ("no", "right")), tmp_path, {})
    assert (order.better, order.worse, order.even, order.swayed, order.unreadable) == counts
    assert isinstance(order, Judged) and order.net.value == 0


def test_a_judge_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the judge answered with no answer"):
        judge_results(Judge("http://127.0.0.1:9", "gone"), results(("a", "b")), tmp_path, {})


def test_the_last_verdict_counts() -> None:
    assert verdict_of("VERDICT: A or VERDICT: B?\nVERDICT: tie") == "TIE"
    assert verdict_of("**Verdict:** B.") == "B"
    assert verdict_of("VERDICT: Absent") is None
