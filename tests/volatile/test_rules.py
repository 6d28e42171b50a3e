"""Rules for volatile text: what each finds and leaves, that nothing is lost, and that twice is once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.volatile.prompts import chat

from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.apis import MESSAGES
from prefixpilot.apis.base import Pointer, Prompt
from prefixpilot.errors import ConfigError
from prefixpilot.pieces import Span, apply
from prefixpilot.volatile.base import VolatileRules
from prefixpilot.volatile.ids import is_id_line
from prefixpilot.volatile.rules import Treatment, appended, treat

ROUND = VolatileRules(clock="round")
MOVE = VolatileRules(clock="move", ids=True, memory=True)
ALL = VolatileRules(clock="round", ids=True, memory=True, billing_header=True, tool_order=True)


def treated(text: str, rules: VolatileRules, question: str = "And now?") -> tuple[str, str]:
    """The system text and the newest user text as they would be sent."""
    prompt = chat(("system", text), ("user", question))
    return sent(prompt, treat(prompt, rules, to_anthropic=False))


def sent(prompt: Prompt, treatment: Treatment) -> tuple[str, str]:
    forms = dict(treatment.forms)
    texts = {s.pointer: apply(forms.get(s.pointer, ()), s.text) for s in prompt.segments()}
    if treatment.newest is not None:
        pointer, words = treatment.newest
        texts[pointer] = apply(appended((), texts[pointer], words), texts[pointer])
    everything = list(texts.values())
    return everything[0], everything[-1]


@pytest.mark.parametrize(
    ("line", "left", "said"),
    [
        (
            "The current date and time is Monday, November 30, 2026 2:03 PM.",
            "The current date and time is Monday, November 30, 2026.",
            "current date and time is Monday, November 30, 2026 2:03 PM",
        ),
        (
            "Current datetime: 2026-11-30T14:03:22.123456+01:00",
            "Current datetime: 2026-11-30",
            "Current datetime: 2026-11-30T14:03:22.123456+01:00",
        ),
        ("Today is 2026-11-30 14:03:22 UTC", "Today is 2026-11-30", "Today is 2026-11-30 14:03:22 UTC"),
        (
            "- **Current time:** Mon Nov 30 00:45:59 UTC 2026",
            "- **Current time:** Mon Nov 30 2026",
            "Current time:** Mon Nov 30 00:45:59 UTC",
        ),
        (
            "Current time: Mon Nov 30 2026 14:03:22 GMT+0100 (Central European Time)",
            "Current time: Mon Nov 30 2026",
            "Current time: Mon Nov 30 2026 14:03:22 GMT+0100 (Central European Time)",
        ),
        ("Current date: 11/30/2026, 3:07:42 PM", "Current date: 11/30/2026", "Current date: 11/30/2026, 3:07:42 PM"),
        (
            "Now: Tuesday, 1 December 2026 at 09:05 in Bergen",
            "Now: Tuesday, 1 December 2026 in Bergen",
            "Now: Tuesday, 1 December 2026 at 09:05",
        ),
        ("Server time: 14:03", "Server time: (see the newest message)", "Server time: 14:03"),
        (
            "The current time in Oslo is 14:03:59.",
            "The current time in Oslo is (see the newest message).",
            "current time in Oslo is 14:03:59",
        ),
        ("Current time (UTC): 14:03", "Current time (UTC): (see the newest message)", "Current time (UTC): 14:03"),
        ("Current date (2026-11-30 14:03)", "Current date (2026-11-30)", "Current date (2026-11-30 14:03"),
        ("当前时间：2026年11月30日 14:03", "当前时间：2026年11月30日", "当前时间：2026年11月30日 14:03"),
    ],
)
def test_a_time_is_rounded_to_the_day_and_told_in_the_newest_message(line: str, left: str, said: str) -> None:
    system, newest = treated(f"You help.\n{line}\nBe brief.", ROUND)
    assert system == f"You help.\n{left}\nBe brief."
    assert newest == f"And now?\n\n[{said}]"


@pytest.mark.parametrize(
    "line",
    [
        "The office opens at 09:00 and closes at 17:30.",
        "If the current time is 18:00, say good evening.",
        "Write times like `Current time: 14:03`.",
        "Current date: 2026-11-30",
        "2026-11-30 14:03:22 INFO started",
        "The event date and time: 2026-11-30 14:03",
        "Today is Monday. The shop opens at 10:00.",
        "Ratio 3:10:44:20 of the current time budget.",
        "The current time that 14:03",
    ],
)
def test_other_times_stay(line: str) -> None:
    assert treated(f"You help.\n{line}\nBe brief.", ROUND) == (f"You help.\n{line}\nBe brief.", "And now?")


@pytest.mark.parametrize(
    "frame",
    [
        "```\n{}\n```",
        "~~~log\n{}\n~~~~",
        "<document>\n{}\n</document>",
        '<source id="1">text\n{}\nmore</source>',
        "```\nnever closed\n{}",
    ],
)
def test_no_rule_reads_code_or_documents(frame: str) -> None:
    inner = "Current time: 2026-11-30 14:03\nRequest ID: 5f0c-99ab\nUser Memories:\n- likes tea"
    text = frame.format(inner) + "\nBe brief."
    for rules in (ALL, MOVE):
        assert treated(text, rules) == (text, "And now?")


def test_what_a_caller_excludes_is_not_read() -> None:
    text = "Source 1\nCurrent time: 2026-11-30 14:03\n\nRequest ID: 5f0c-99ab\nBe brief."
    prompt = chat(("system", text), ("user", "Hello"))
    excluded: dict[Pointer, list[Span]] = {("messages", 0, "content"): [Span(0, text.index("\n\n"))]}
    treatment = treat(prompt, ALL, to_anthropic=False, excluded=excluded)
    assert sent(prompt, treatment)[0] == "Source 1\nCurrent time: 2026-11-30 14:03\n\nBe brief.\nRequest ID: 5f0c-99ab"


def test_facts_of_the_environment_are_read() -> None:
    system, _ = treated("<env>\nCurrent time: 2026-11-30 14:03\n</env>\nBe brief.", ROUND)
    assert system == "<env>\nCurrent time: 2026-11-30\n</env>\nBe brief."


def test_two_requests_of_one_day_have_one_system_text() -> None:
    texts = [f"You help.\nCurrent date and time: 2026-11-30 14:0{i}:00\n" + "Rules.\n" * 50 for i in range(3)]
    assert len({treated(text, ROUND)[0] for text in texts}) == 1


@pytest.mark.parametrize(
    ("line", "is_id"),
    [
        ("Request ID: 7d3f2c1a-9b1e-4c7e-8a51-0f4f2d9a7b11", True),
        ("- **session_id**: `abc123def`", True),
        ("trace-id = 4bf92f3577b34da6a3ce929d0e0e4736", True),
        ("x-request-id: req_011CaUi2ayLNCHz6AUbBYtoQ", True),
        ("Request ID: see the header", False),
        ("Request ID: unknown", False),
        ("User ID: 7d3f2c1a-9b1e", False),
        ("The request id: 7d3f2c1a is in each log line", False),
        ("Order ID: 20261130-77", False),
    ],
)
def test_id_lines(line: str, is_id: bool) -> None:
    assert is_id_line(line, Span(0, len(line))) is is_id


def test_volatile_lines_and_sections_move_behind_the_rest() -> None:
    text = (
        "Request ID: 5f0c-99ab\n"
        "You help.\n"
        "Current time: 2026-11-30 14:03\n"
        "\n"
        "Here is what you know of the user:\n"
        "<memories>\n"
        "- likes tea\n"
        "</memories>\n"
        "\n"
        "## Relevant memories\n"
        "\n"
        "1. [2026-10-01] has a dog\n"
        "2. [2026-10-02] has a cat\n"
        "Rules:\n"
        "- be brief\n"
        "\n"
    )
    system, newest = treated(text, MOVE)
    assert system == (
        "You help.\n"
        "\n"
        "\n"
        "Rules:\n"
        "- be brief\n"
        "Request ID: 5f0c-99ab\n"
        "Current time: 2026-11-30 14:03\n"
        "Here is what you know of the user:\n"
        "<memories>\n"
        "- likes tea\n"
        "</memories>\n"
        "## Relevant memories\n"
        "\n"
        "1. [2026-10-01] has a dog\n"
        "2. [2026-10-02] has a cat\n"
        "\n"
    )
    assert newest == "And now?"


@pytest.mark.parametrize(
    "text",
    [
        "You have a memory of past talks.\nMemory is limited.\nBe brief.",
        "## Memory\nWrite to it often.\nBe brief.",
        "<memories>\nnever closed\nBe brief.",
        "<memories>\n<memories>\n- a\n</memories>\n</memories>\nBe brief.",
        "<memories>\n```\n</memories>\n```\nBe brief.",
        "Be brief.\nUser Memories:\n- likes tea\nRequest ID: 5f0c-99ab\n\n",
    ],
)
def test_what_is_no_section_or_stands_last_already_stays(text: str) -> None:
    assert treated(text, MOVE)[0] == text


def test_line_breaks_of_all_kinds_stay_in_place() -> None:
    assert treated("A\r\nRequest ID: 5f0c-99ab\nB", MOVE)[0] == "A\r\nB\nRequest ID: 5f0c-99ab"


def test_a_long_line_does_not_move_for_its_time() -> None:
    text = "Current time: 14:03. You are the clerk of the harbour office and answer politely.\nBe brief."
    assert treated(text, VolatileRules(clock="move"))[0] == text


HEADER = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"


def test_the_billing_header_goes_where_the_upstream_is_not_anthropic() -> None:
    text = f"{HEADER}\nYou are a coding agent.\nRequest ID: 5f0c-99ab\nBe brief."
    prompt = chat(("system", text), ("user", "Hello"))
    rules = VolatileRules(billing_header=True)
    rest = text.removeprefix(HEADER + "\n")
    assert sent(prompt, treat(prompt, rules, to_anthropic=False))[0] == rest
    assert treat(prompt, rules, to_anthropic=True) == Treatment((), None, ())
    both = treat(prompt, VolatileRules(billing_header=True, ids=True), to_anthropic=False)
    assert sent(prompt, both)[0] == "You are a coding agent.\nBe brief.\nRequest ID: 5f0c-99ab"
    assert [change.rule for change in both.changes] == ["billing-header", "ids"]
    assert text[slice(*both.changes[1].span)] == "Request ID: 5f0c-99ab\n"


def test_a_part_that_is_nothing_but_the_header_is_not_left_empty() -> None:
    body = {"system": [{"type": "text", "text": HEADER}, {"type": "text", "text": "You code."}], "messages": []}
    prompt = MESSAGES.read(body)
    assert prompt is not None
    treatment = treat(prompt, VolatileRules(billing_header=True), to_anthropic=False)
    (form,) = treatment.forms
    assert form.pointer == ("system", 0, "text")
    assert apply(form.form, HEADER) == "x-anthropic-billing-header:"


def test_a_header_further_back_is_text_like_any_other() -> None:
    text = f"About headers.\n{HEADER}\nBe brief."
    assert treated(text, VolatileRules(billing_header=True))[0] == text


CLOCK = "Current time: 2026-11-30 14:03\nBe brief."


def test_in_a_tool_loop_the_time_is_rounded_only_if_the_message_tells_it_already() -> None:
    prompt = chat(("system", CLOCK), ("user", "Hello"), ("assistant", "calling"), ("tool", "result"))
    assert treat(prompt, ROUND, to_anthropic=False) == Treatment((), None, ())
    stated = treat(prompt, ROUND, to_anthropic=False, stated=True)
    assert sent(prompt, stated)[0] == "Current time: 2026-11-30\nBe brief."
    assert stated.newest is None


def test_without_a_place_for_the_exact_time_it_stays() -> None:
    prompt = chat(("system", CLOCK), ("user", ()))
    assert treat(prompt, ROUND, to_anthropic=False) == Treatment((), None, ())


def test_a_text_full_of_times_is_a_log() -> None:
    for count, rounded in ((256, True), (257, False)):
        text = "Current time: 2026-11-30 14:03\n" * count
        assert (treated(text, ROUND)[0] != text) is rounded


def test_only_system_text_in_front_of_the_conversation_is_treated() -> None:
    prompt = chat(("user", CLOCK), ("system", CLOCK), ("assistant", CLOCK), ("user", CLOCK))
    assert treat(prompt, ALL, to_anthropic=False) == Treatment((), None, ())


def test_several_times_are_told_once_each() -> None:
    text = "Current time: 2026-11-30 14:03\nCurrent time: 2026-11-30 14:03\nLocal time: 15:03\nBe brief."
    assert treated(text, ROUND)[1] == "And now?\n\n[Current time: 2026-11-30 14:03; Local time: 15:03]"


def test_a_dry_run_names_rule_place_and_span_without_text() -> None:
    prompt = chat(("system", CLOCK), ("user", "Hello"))
    changes = treat(prompt, ROUND, to_anthropic=False).changes
    assert [(change.rule, change.pointer) for change in changes] == [
        ("clock", ("messages", 0, "content")),
        ("clock", ("messages", 1, "content")),
    ]
    assert CLOCK[slice(*changes[0].span)] == " 14:03"
    assert not any("14:03" in change.what for change in changes)


def test_all_rules_are_off_unless_switched_on() -> None:
    text = f"{HEADER}\nRequest ID: 5f0c-99ab\nUser Memories:\n- a\n{CLOCK}"
    assert not VolatileRules().any
    assert VolatileRules(ids=True).any
    assert treated(text, VolatileRules()) == (text, "And now?")


@pytest.mark.parametrize(("name", "value"), [("clock", "day"), ("ids", 1), ("memory", None), ("tool_order", "on")])
def test_settings_validate_themselves(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        VolatileRules(**{name: value})  # type: ignore[arg-type]


PLAIN = ["You help.", "Be brief.", "", "  ", "Rules:", "- one", "# Title", "a" * 90]
VOLATILE = [
    "Current time: 2026-11-30 14:03",
    "Current date and time: Monday, November 30, 2026 2:03 PM 15:04",
    "Local time: 14:03 (UTC) Current time: 15:00",
    "Current time is Current time is 14:03",
    "Request ID: 5f0c-99ab",
    "- session id: 5f0c-99ab",
    "User Memories:",
    "## Memories",
    "- likes tea",
    "1. [2026-10-01] has a dog",
    "<memories>",
    "</memories>",
    "<memory>a</memory>",
    HEADER,
    "x-anthropic-billing-header:",
]
FRAMES = ["```", "```py", "~~~", "<document>", "</document>", "<env>", "</env>", "<x/>", "text</document>"]
texts = st.lists(st.sampled_from(PLAIN + VOLATILE + FRAMES), max_size=14).flatmap(
    lambda parts: st.lists(st.sampled_from(["\n", "\n", "\r\n", "\n\n"]), min_size=len(parts), max_size=len(parts)).map(
        lambda breaks: "".join(part + end for part, end in zip(parts, breaks, strict=True))
    )
)
switches = st.builds(
    VolatileRules,
    clock=st.sampled_from(["off", "round", "move"]),
    ids=st.booleans(),
    memory=st.booleans(),
    billing_header=st.booleans(),
)


@given(texts, switches)
def test_twice_is_once(text: str, rules: VolatileRules) -> None:
    system, newest = treated(text, rules)
    assert treated(system, rules, newest) == (system, newest)


@given(texts, switches)
def test_nothing_is_lost(text: str, rules: VolatileRules) -> None:
    prompt = chat(("system", text), ("user", "Hello"))
    treatment = treat(prompt, rules, to_anthropic=False)
    system, newest = sent(prompt, treatment)
    gone = [change for change in treatment.changes if change.rule == "billing-header"]
    if rules.clock == "round":
        rounded = [c for c in treatment.changes if c.rule == "clock" and c.pointer == ("messages", 0, "content")]
        assert all(text[slice(*change.span)] in newest for change in rounded), "a time stands nowhere"
        gone += rounded
    else:
        assert newest == "Hello"
    removed = "".join(text[slice(*change.span)] for change in gone)
    words = DEFAULT_TEMPLATES.time_moved * (system.count(DEFAULT_TEMPLATES.time_moved))
    assert Counter(system) + Counter(removed) == Counter(text) + Counter(words)


@given(texts)
def test_lines_that_move_keep_their_words(text: str) -> None:
    system, _ = treated(text, MOVE)
    assert sorted(line.rstrip("\r") for line in text.split("\n")) == sorted(
        line.rstrip("\r") for line in system.split("\n")
    )


@given(st.text(alphabet="Current time:is 2026-11-30T14Z<>`\n#", max_size=80))
def test_no_text_raises(text: str) -> None:
    treated(text, ALL)
    treated(text, MOVE)
