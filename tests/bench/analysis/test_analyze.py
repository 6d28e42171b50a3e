"""An analysis, on logs whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.bench.analysis import Analysis, AnalysisOptions, PageOptions, analyze, render_page
from prefixpilot.errors import ConfigError, TraceError

from .conftest import Write, chat, document, documents

ONE = AnalysisOptions(processes=1)


def arms(analysis: Analysis) -> dict[str, int]:
    return {arm.name: arm.cached_tokens for arm in analysis.arms}


def reordered(count: int = 8) -> list[dict[str, Any]]:
    """Requests over the same six documents, each in another order."""
    return [chat(documents([(i + k * (1 + i % 2)) % 7 for k in range(6)]) + f"\n\nQuestion {i}?") for i in range(count)]


def test_documents_in_other_orders_are_reused_once_they_are_ordered(write_log: Write) -> None:
    analysis = analyze(write_log(reordered()), ONE)
    came, treated = analysis.arms[0], analysis.best
    assert came.name == "arrival"
    assert treated.cached_tokens > 2 * came.cached_tokens
    assert treated.prefilled_tokens < came.prefilled_tokens
    assert analysis.blocks.requests == 8
    assert analysis.blocks.blocks == 48
    assert analysis.blocks.repeated_tokens > 0.8 * analysis.blocks.tokens
    assert analysis.blocks.bound_tokens is not None
    assert analysis.blocks.bound_tokens <= analysis.blocks.repeated_tokens
    assert analysis.touched
    assert [arm.name for arm in analysis.arms][-1] == "order+dedupe+schedule"


def test_context_blocks_are_rendered_in_the_given_order_for_comparison(write_log: Write) -> None:
    bodies = [{**chat(f"Question {i}?"), "context_blocks": [document((i + k) % 6) for k in range(5)]} for i in range(6)]
    analysis = analyze(write_log([{"url": "/v1/chat/completions", "body": body} for body in bodies]), ONE)
    assert analysis.arms[0].prompt_tokens > 6 * 5 * 200
    assert analysis.best.cached_tokens > analysis.arms[0].cached_tokens
    assert analysis.blocks.blocks == 30


def test_a_repeat_in_a_later_turn_is_told_apart_from_order(write_log: Write) -> None:
    first = documents([1, 2, 3]) + "\n\nWhat is known?"
    lines = [chat(first), chat(first, "Much.", documents([3, 4]) + "\n\nAnd of these?")]
    analysis = analyze(write_log(lines), ONE)
    assert analysis.replaced == 1
    assert analysis.conversations == 1
    names = [arm.name for arm in analysis.arms]
    assert names[:3] == ["arrival", "order", "order+dedupe"]
    by_name = {arm.name: arm for arm in analysis.arms}
    assert by_name["order+dedupe"].prompt_tokens < by_name["order"].prompt_tokens - 150


def test_a_clock_is_found_and_what_its_rule_would_bring_is_measured(write_log: Write) -> None:
    rules = "\n".join(f"Rule {i}: be exact about the matter of item {i}." for i in range(60))
    lines = [
        chat(f"Question {i}?", system=f"Current time: 2026-11-30 09:{i:02d}:00\n{rules}", model="gpt-4o")
        for i in range(10)
    ]
    analysis = analyze(write_log(lines), ONE)
    (finding,) = analysis.findings
    assert finding.cause == "clock"
    assert finding.requests == 9
    assert finding.example.line == 2
    assert finding.example.where == "/messages/0/content"
    assert finding.example.after[: finding.example.after.index(":0")].endswith("09")
    assert finding.remedy.startswith("--volatile-clock")
    assert finding.lost_tokens > 9 * 600
    cached = arms(analysis)
    assert cached["order+dedupe"] == cached["arrival"] < 500
    assert cached["order+dedupe+rules"] > 9 * 500
    assert "order+dedupe+schedule" not in cached  # no documents: nothing to schedule by


def test_documents_in_system_text_are_no_change_of_it(write_log: Write) -> None:
    """They are what is ordered: not something for the application to move."""
    lines = [
        chat(f"Question {i}?", system="Answer from these.\n" + documents([(i + k) % 7 for k in range(6)]))
        for i in range(6)
    ]
    analysis = analyze(write_log(lines), ONE)
    assert analysis.blocks.requests == 6
    assert analysis.findings == ()


def test_another_application_is_no_change_of_the_first(write_log: Write) -> None:
    systems = ["You write poems.\nRhyme.\nBe merry.", "You review code.\nBe strict.\nName lines."]
    lines = [chat(f"Question {i}?", system=systems[i % 2]) for i in range(6)]
    assert analyze(write_log(lines), ONE).findings == ()


def test_tools_in_another_order_are_found(write_log: Write) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b", "c")]
    lines = [{**chat(f"Q{i}"), "tools": tools if i % 2 else tools[::-1]} for i in range(2)]
    (finding,) = analyze(write_log(lines), ONE).findings
    assert (finding.cause, finding.example.where) == ("tool-order", "/tools")


def test_nothing_shared_says_so(write_log: Write) -> None:
    lines = [{"model": f"m{i}", "prompt": document(i)} for i in range(4)]
    analysis = analyze(write_log(lines), ONE)
    assert [arm.cached_tokens for arm in analysis.arms] == [0, 0]
    assert "PrefixPilot would not raise" in render_page(analysis)
    assert "No documents were found" in render_page(analysis)


def test_bad_lines_are_counted_and_the_first_are_told(write_log: Write) -> None:
    analysis = analyze(write_log(["{", *reordered(2), *["no"] * 30]), ONE)
    assert analysis.requests == 2
    assert analysis.bad_lines == 31
    assert analysis.bad_examples[0].number == 1
    assert len(analysis.bad_examples) == 20
    assert "and 11 more" in render_page(analysis)


def test_blocks_that_cannot_be_used_are_left_out_of_all_arms(write_log: Write) -> None:
    good, bad = reordered(3), {**chat("Q"), "context_blocks": [7]}
    analysis = analyze(write_log([*good, bad]), ONE)
    assert (analysis.requests, analysis.refused) == (3, 1)
    assert {arm.curve[-1].requests for arm in analysis.arms} == {3}


def test_processes_do_not_change_the_result(write_log: Write) -> None:
    path = write_log(reordered())
    told: list[float] = []
    two = analyze(path, AnalysisOptions(processes=2), told.append)
    assert two == analyze(path, ONE)
    assert told[-1] == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in told)


def test_a_small_cache_holds_less(write_log: Write) -> None:
    path = write_log(reordered(12))
    small = analyze(path, AnalysisOptions(cache_tokens=500, schedule=False, processes=1))
    large = analyze(path, AnalysisOptions(cache_tokens=None, schedule=False, processes=1))
    assert small.best.cached_tokens < large.best.cached_tokens
    assert small.cache_tokens == 500
    assert "without a bound" in render_page(large)


def test_prices_of_a_provider_and_none_of_an_own_model(write_log: Write) -> None:
    own = analyze(write_log(reordered(3)), ONE)
    assert {arm.billed_tokens for arm in own.arms} == {None}
    assert "billed as" not in render_page(own)
    lines = [{**body, "model": "gpt-4o"} for body in reordered(8)]
    hosted = analyze(write_log(lines), ONE)
    for arm in hosted.arms:
        assert arm.billed_tokens is not None
        assert arm.prefilled_tokens <= arm.billed_tokens <= 1.25 * arm.prompt_tokens
    page = render_page(hosted, PageOptions(price=2.5))
    assert "<th>cost</th>" in page


@pytest.mark.parametrize(("text", "reason"), [("", "is empty"), ("{\n", "holds no request (line 1 is not JSON")])
def test_a_log_without_requests_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as refused:
        analyze(path, ONE)
    assert reason in str(refused.value)
    assert "give JSON Lines of requests" in str(refused.value)


def test_a_missing_file_is_told_across_processes(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="give a file that can be read"):
        analyze(tmp_path / "nowhere", ONE)


def test_options_name_the_field() -> None:
    with pytest.raises(ConfigError, match="cache_tokens: is 0; use an int of 1 or more"):
        AnalysisOptions(cache_tokens=0)
    with pytest.raises(ConfigError, match="processes: is 0; use an int of 1 or more"):
        AnalysisOptions(processes=0)
    with pytest.raises(ConfigError, match="prefill_rate: is 0; use a number above 0"):
        PageOptions(prefill_rate=0)
    with pytest.raises(ConfigError, match="price: is 0; use a number above 0"):
        PageOptions(price=0)


def test_the_page_stands_alone_and_escapes_what_the_log_says(write_log: Write) -> None:
    system = "Current time: 2026-11-30 09:{:02d}:00 <script>alert(1)</script>\n" + "Be exact.\nBe brief.\nBe kind."
    lines = [chat(f"Q{i}", system=system.format(i), model="<b>m</b>") for i in range(3)]
    analysis = analyze(write_log(lines), ONE)
    page = render_page(analysis)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;m&lt;/b&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "$" not in page


def test_no_words_of_the_log_where_none_are_wanted(write_log: Write) -> None:
    system = "Current time: 2026-11-30 09:{:02d}:00 secretword\n" + "Be exact.\nBe brief.\nBe kind."
    lines = [chat(f"Q{i}", system=system.format(i)) for i in range(3)]
    analysis = analyze(write_log(lines), ONE)
    assert "secretword" in render_page(analysis)
    assert "secretword" not in render_page(analysis, PageOptions(show_text=False))
    assert "secretword" in json.dumps(analysis.as_json())
    assert "secretword" not in json.dumps(analysis.as_json(show_text=False))


def test_images_and_tool_calls_are_part_of_a_prompt(write_log: Write) -> None:
    def looks(url: str, call: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        made = {"id": "1", "type": "function", "function": {"name": "look", "arguments": call}}
        said = {"role": "assistant", "content": None, "tool_calls": [made]}
        return {"model": "m", "messages": [{"role": "user", "content": parts}, said]}

    same = analyze(write_log([looks("a", "{}"), looks("a", "{}")]), ONE)
    other = analyze(write_log([looks("a", "{}"), looks("b", "{}")]), ONE)
    assert same.arms[0].cached_tokens > 250
    assert other.arms[0].cached_tokens == 0


def stuffed(i: int) -> str:
    """As LangChain's hub has it: nothing but blank lines between documents."""
    texts = "\n\n".join(document((i * 3 + k * 7) % 40) for k in range(3))
    return f"Answer the question.\nQuestion: What of {i}?\nContext: {texts}\nAnswer:"


def test_documents_without_edges_are_told_and_not_passed_over(write_log: Write) -> None:
    analysis = analyze(write_log([chat(stuffed(i), system="Be kind.") for i in range(6)] * 2), ONE)
    (seen,) = analysis.unproved
    assert (seen.format, seen.texts, seen.line) == ("langchain_hub_rag_prompt", 6, 1)
    assert not analysis.blocks.blocks
    page = render_page(analysis)
    assert "Edges not proved: 6 texts, first in line 1" in page and "langchain_hub_rag_prompt" in page
    assert json.loads(json.dumps(analysis.as_json()))["unproved"] == [seen._asdict()]


def test_documents_in_a_system_text_without_marks_are_told_and_a_clock_is_none(write_log: Write) -> None:
    def system(i: int) -> str:
        return "Use the context.\n\n" + "\n\n".join(document((i * 5 + k) % 40) for k in range(4))

    analysis = analyze(write_log([chat(f"Q{i}", system=system(i)) for i in range(5)]), ONE)
    assert [(seen.format, seen.texts) for seen in analysis.unproved] == [("langchain_stuff", 5)]
    rules = "\n\n".join(f"Rule {i}: {'be exact about what was asked for. ' * 4}" for i in range(5))
    clock = [chat(f"Q{i}", system=f"Current time: 2026-11-30 09:{i:02d}:00\n{rules}\n\nBe brief.") for i in range(5)]
    assert analyze(write_log(clock), ONE).unproved == ()


def test_documents_with_edges_are_not_told_so(write_log: Write) -> None:
    assert analyze(write_log(reordered()), ONE).unproved == ()


def test_a_wide_table_says_that_it_moves(write_log: Write) -> None:
    page = render_page(analyze(write_log(reordered()), ONE))
    assert 'class="soft wide">The table is wider than this screen' in page
    assert (
        '<div class="scroll" tabindex="0"' in page and "@media (max-width: 44rem) { .wide { display: block; } }" in page
    )
