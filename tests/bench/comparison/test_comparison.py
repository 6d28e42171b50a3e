"""Arms side by side on the simulated engine, and the file that keeps what is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from prefixpilot.bench.comparison.arms import ARMS, arm_of, outgoing
from prefixpilot.bench.comparison.cells import Cell, CellResult, Done, Grid
from prefixpilot.bench.comparison.client import Load, Sample, Target, run_load
from prefixpilot.bench.comparison.engines import Running, Simulated
from prefixpilot.bench.comparison.plots import plot
from prefixpilot.bench.comparison.prepared import Preparation, filler, prepare
from prefixpilot.bench.comparison.runner import CELLS, Comparison, run_comparison
from prefixpilot.bench.comparison.summary import figures, markdown
from prefixpilot.core import ContextBlock, Request, RequestId
from prefixpilot.errors import ConfigError, EngineError
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond
from prefixpilot.workloads import Workload, WorkloadRequest

TOPICS = [[0, 1, 2, 3], [3, 1, 0, 2], [2, 0, 1, 9], [5, 6, 7, 8], [8, 6, 5, 7], [1, 2, 3, 0]]


def workload(*, sessions: int = 6, texts: bool = False) -> Workload:
    """Six requests; with fewer sessions they are turns."""
    entries, turns = [], dict.fromkeys(range(sessions), -1)
    for number, ids in enumerate(TOPICS):
        session = number % sessions
        turns[session] += 1
        blocks = [ContextBlock(f"Fact {i}. " + f"word{i} " * 40 if texts else None, i, tokens=60) for i in ids]
        request = Request(tuple(blocks), RequestId(f"r{number}"))
        entries.append(WorkloadRequest(request, f"s{session}", turns[session], f"w:{number}", query=f"Why {number}?"))
    return Workload("topics", tuple(entries))


def comparison(**more: object) -> Comparison:
    base = Comparison(workload(), Simulated(), Grid(cache_tokens=(None,)))
    return replace(base, **more)  # type: ignore[arg-type]


def test_every_arm_reuses_what_it_should(tmp_path: Path) -> None:
    told: list[str] = []
    report = run_comparison(comparison(), tmp_path, lambda cell, done, cells: told.append(f"{done}/{cells} {cell.arm}"))
    assert told == [f"{i}/8 {arm}" for i, arm in enumerate(ARMS)]
    (arms,) = report.figures.values()
    by_name = {arm.arm: arm for arm in arms}
    assert all(arm.requests == 6 for arm in arms)
    assert by_name["arrival"].prefilled is None
    assert by_name["order"].prompt_tokens == by_name["arrival"].prompt_tokens
    assert by_name["annotated"].prompt_tokens > by_name["order"].prompt_tokens
    assert by_name["order"].cached_tokens > 2 * by_name["arrival"].cached_tokens
    assert by_name["scheduled"].cached_tokens >= by_name["deduped"].cached_tokens
    ratio = by_name["deduped"].prefilled
    assert ratio is not None
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(by_name["arrival"].prefilled_tokens / by_name["deduped"].prefilled_tokens)
    assert 0 < (report.bound["None"] or 0) < 1


def test_turns_carry_their_history_and_are_deduped(tmp_path: Path) -> None:
    compared = comparison(workload=workload(sessions=2), how=Preparation(multi_turn=True))
    (arms,) = run_comparison(compared, tmp_path).figures.values()
    by_name = {arm.arm: arm for arm in arms}
    assert by_name["deduped"].prompt_tokens < by_name["annotated"].prompt_tokens
    assert by_name["deduped"].prefilled_tokens < by_name["arrival"].prefilled_tokens


@pytest.mark.parametrize("load", [Load(concurrency=3), Load(rate=200.0)])
def test_under_concurrency_nothing_is_sent_twice_or_lost(tmp_path: Path, load: Load) -> None:
    with SimulatedEngine() as engine:
        running = Running(engine.base_url)
        compared = comparison(
            workload=workload(sessions=2),
            engine=running,
            how=Preparation(multi_turn=True),
            grid=Grid(("arrival",), concurrencies=(4,)),
            load=load,
        )
        run_comparison(compared, tmp_path)
        questions = [request.json()["messages"][-1]["content"].rpartition("\n")[2] for request in engine.chats]
        turns = [len(request.json()["messages"]) for request in engine.chats]
    assert sorted(questions) == sorted(f"Why {i}?" for i in range(6))
    assert sorted(turns) == [1, 1, 3, 3, 5, 5]
    assert running.name == engine.base_url


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    opened: list[str] = []

    class Counted(Simulated):
        @contextmanager
        def cold(self, cache_tokens: int | None, cell: str) -> Iterator[Target]:
            opened.append(cell)
            with super().cold(cache_tokens, cell) as target:
                yield target

    compared = comparison(engine=Counted(), grid=Grid(("arrival", "deduped"), repeats=2))
    first = run_comparison(compared, tmp_path)
    assert len(opened) == 4
    file = tmp_path / CELLS
    file.write_bytes(file.read_bytes()[:-20])  # the last line, cut off
    again = run_comparison(compared, tmp_path)
    assert len(opened) == 5
    counts = [[(arm.prompt_tokens, arm.cached_tokens) for arm in arms] for arms in first.figures.values()]
    assert counts == [[(arm.prompt_tokens, arm.cached_tokens) for arm in arms] for arms in again.figures.values()]


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    run_comparison(comparison(grid=Grid(("arrival",))), tmp_path)
    other = comparison(how=Preparation(limit=3), grid=Grid(("arrival",)))
    with pytest.raises(ConfigError, match="is of another comparison; give another folder, or remove the file"):
        run_comparison(other, tmp_path)


def test_an_engine_that_fails_ends_the_run_and_keeps_what_is_complete(tmp_path: Path) -> None:
    answered: list[int] = []
    with SimulatedEngine() as engine:
        compared = comparison(engine=Running(engine.base_url), grid=Grid(("arrival", "deduped")))

        def fail_in_the_second_cell() -> None:
            answered.append(1)
            if len(answered) == 8:
                engine.fault = Respond(503, b"busy")

        with pytest.raises(EngineError, match="answered 503: busy"):
            run_comparison(compared, tmp_path, on_answer=fail_in_the_second_cell)
        engine.fault = None
        (arms,) = run_comparison(compared, tmp_path, on_answer=lambda: answered.append(1)).figures.values()
    assert [arm.arm for arm in arms] == ["arrival", "deduped"]
    assert len(answered) == 8 + 6, "the first cell was not run again"


def test_another_trace_of_the_same_name_is_another_comparison(tmp_path: Path) -> None:
    run_comparison(comparison(grid=Grid(("arrival",))), tmp_path)
    with pytest.raises(ConfigError, match="is of another comparison"):
        run_comparison(comparison(workload=workload(texts=True), grid=Grid(("arrival",))), tmp_path)


def test_where_a_cache_cannot_be_emptied_prompts_begin_with_a_line_of_their_own() -> None:
    with SimulatedEngine(reply=lambda body: body["messages"][0]["content"]) as engine:
        requests = prepare(workload(sessions=2), Preparation(multi_turn=True))
        target = Target(engine.base_url, "Run 1.")
        asyncio.run(run_load(target, arm_of("arrival"), requests, outgoing(arm_of("arrival"), requests, None), Load()))
        assert all(request.json()["messages"][0] == {"role": "system", "content": "Run 1."} for request in engine.chats)
        assert max(len(request.json()["messages"]) for request in engine.chats) == 6
    with Running(engine.base_url).cold(None, "cell 2") as cold:
        assert cold.opening is not None
        assert cold.opening.startswith("Run cell 2 ")


def test_a_stopped_engine_is_told() -> None:
    with SimulatedEngine() as engine:
        running = Running(engine.base_url)
        assert running.model() == "simulated"
    with pytest.raises(EngineError, match="/v1/models"):
        running.model()


def test_a_cell_comes_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / CELLS
    result = CellResult(
        Cell(1000, None, 2, 0, "arrival"), (Sample(0, 10, 4, 0.25, 0.5), Sample(1, 9, 0, 0.1, 0.2)), 1.5
    )
    Done(path, {"workload": "w"}).add(result)
    assert Done(path, {"workload": "w"}).results == {result.cell: result}
    path.write_text("no json\n")
    with pytest.raises(ConfigError, match="is not JSON Lines"):
        Done(path, {"workload": "w"})


def test_a_ratio_of_equal_arms_is_one() -> None:
    samples = tuple(Sample(i, 100, i, 0.1 + i / 100, 0.3) for i in range(20))
    cells = [CellResult(Cell(None, None, 1, 0, arm), samples, 2.0) for arm in ("arrival", "deduped")]
    ((_, same),) = figures(cells).values()
    assert same.prefilled == same.ttft == same.prefill_time == (1.0, 1.0, 1.0)
    assert same.requests_per_s == 10.0
    assert same.ttft_p95_s == pytest.approx(0.28)
    table = markdown(figures(cells))
    assert "1.00 (1.00-1.00)" in table
    assert json.dumps(same.as_json())


def test_repeats_are_medians_of_each_request() -> None:
    runs = [
        CellResult(Cell(None, None, 1, repeat, "arrival"), (Sample(0, 10, 0, ttft, 1.0),), 1.0)
        for repeat, ttft in enumerate((0.1, 0.2, 9.0))
    ]
    ((arm,),) = figures(runs).values()
    assert arm.ttft_median_s == pytest.approx(0.2)


def test_plots_are_files(tmp_path: Path) -> None:
    samples = tuple(Sample(i, 100, i, 0.1 + i / 100, 0.3) for i in range(5))
    cells = [CellResult(Cell(None, None, 1, 0, arm), samples, 2.0) for arm in ARMS]
    written = plot(tmp_path, figures(cells), cells)
    assert [path.name for path in written] == ["hit-rate.svg", "ttft-median.svg", "ttft-1.svg", "cached-1.svg"]
    assert all(path.read_text().lstrip().startswith("<?xml") for path in written)


def test_texts_are_kept_and_lengths_are_filled() -> None:
    filled = prepare(workload(), Preparation(k=2, prompt_tokens=240))
    assert [len(request.blocks) for request in filled] == [2] * 6
    lengths = [len(block.text or "") // 4 for request in filled for block in request.blocks]
    assert 90 <= sum(lengths) / len(lengths) <= 200
    assert filled[0].blocks[1] is filled[1].blocks[1]
    given = prepare(workload(texts=True), Preparation(limit=1))
    assert given[0].blocks[0].text == "Fact 0. " + "word0 " * 40
    assert given[0].question == "Why 0?"


def test_a_filler_is_the_same_for_the_same_id_and_begins_otherwise_for_another() -> None:
    assert filler(7, 50) == filler(7, 50)
    assert filler(7, 50)[:9] != filler(8, 50)[:9]
    assert filler(b"x", 1) == "Record b'x':"


def test_a_schedule_holds_every_request_once() -> None:
    requests = prepare(workload(texts=True), Preparation())
    sent = outgoing(arm_of("scheduled"), requests, None)
    assert sorted(send.number for send in sent) == list(range(6))
    for send in sent:
        for block in requests[send.number].blocks:
            assert block.text is not None
            assert block.text in (send.text or "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grid(("order",)), "arms: is order; name arrival too"),
        (lambda: Grid(repeats=0), "repeats: is 0; use an int of 1 or more"),
        (lambda: Load(concurrency=0), "concurrency: is 0"),
        (lambda: Load(rate=0), "rate: is 0; use a number above 0"),
        (lambda: Preparation(limit=0), "limit: is 0"),
        (lambda: arm_of("best"), "arms: has 'best'; use some of: arrival, queue"),
    ],
)
def test_bad_settings_name_the_field(make: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()  # type: ignore[operator]
    assert str(refused.value).startswith(message)
