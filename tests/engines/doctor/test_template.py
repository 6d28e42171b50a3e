"""Whether turn n is a prefix of turn n+1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prefixpilot.engines.doctor.template import Rendering, common_length, judge, turns

Template = Callable[[Sequence[dict[str, Any]], bool], Rendering]


def plain(messages: Sequence[dict[str, Any]], opens: bool) -> str:
    return "".join(f"<{m['role']}>{m['content']}</>" for m in messages) + ("<assistant>" if opens else "")


def thinking(messages: Sequence[dict[str, Any]], opens: bool) -> str:
    """Opens an answer with a thought that is not there in later turns."""
    return plain(messages, opens) + ("<think>" if opens else "")


def counting(messages: Sequence[dict[str, Any]], opens: bool) -> str:
    """Says at the top how long the conversation is."""
    return f"[{len(messages)} messages]" + plain(messages, opens)


def trimming(messages: Sequence[dict[str, Any]], opens: bool) -> str:
    """Keeps the newest message only in full: later turns have it in short."""
    return plain([{**m, "content": m["content"][:8]} for m in messages[:-1]] + list(messages[-1:]), opens)


def finding(template: Template) -> Any:
    each = [turn.messages for turn in turns()]
    return judge([template(m, False) for m in each], [template(m, True) for m in each])


def test_the_conversation_has_three_turns_each_of_which_goes_on() -> None:
    first, second, third = (turn.messages for turn in turns())
    assert (len(first), len(second), len(third)) == (1, 3, 5)
    assert third[:3] == second and second[:1] == first


def test_a_template_that_only_appends() -> None:
    assert finding(plain).status == "ok"


def test_one_that_opens_answers_otherwise_than_it_keeps_them() -> None:
    found = finding(thinking)
    assert found.status == "warn" and "7 at the end" in found.what


def test_ones_that_change_what_stands_in_front() -> None:
    found = finding(counting)
    assert found.status == "fail" and "after 1 of" in found.what and "'[1 messages]<user>Whi'" in found.what
    assert finding(trimming).status == "fail"


def test_tokens_as_well_as_characters() -> None:
    found = finding(lambda messages, opens: [ord(c) for c in counting(messages, opens)])
    assert found.status == "fail" and "tokens" in found.what


def test_an_engine_that_renders_nothing() -> None:
    assert judge([], [None, None]).status == "unknown"


def test_the_common_length() -> None:
    assert [common_length("abc", "abd"), common_length([1, 2], [1, 2, 3]), common_length("", "a")] == [2, 2, 0]
