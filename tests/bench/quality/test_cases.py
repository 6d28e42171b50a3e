"""What each arm sends: no evidence is lost, arms differ in what their names say, and a sample is a sample."""

from __future__ import annotations

import pytest

from prefixpilot.bench.quality.cases import QUALITY_ARMS, Sampling, draw_cases
from prefixpilot.core import ContextBlock, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.workloads import Workload, WorkloadRequest
from prefixpilot.workloads.synthetic import sessions, topical

TEXT_OF = {number: f"Record {number} says that mill {number} has {number * 7} stones." for number in range(400)}


def with_texts(workload: Workload) -> Workload:
    """The same with a text for every block, a question and an answer for every request."""

    def made(entry: WorkloadRequest) -> WorkloadRequest:
        ids = [block.id for block in entry.request.blocks]
        blocks = tuple(ContextBlock(text=TEXT_OF[int(str(i))], id=i) for i in ids)
        request = Request(blocks, RequestId(entry.request.request_id))
        asked = f"How many stones has mill {ids[0]!s}?"
        return WorkloadRequest(
            request,
            entry.session_id,
            entry.turn,
            entry.where,
            query=asked,
            answers=(f"{entry.request.request_id} stones",),
            evidence=tuple(i for i in ids[:1] if i is not None),
        )

    return Workload(workload.name, tuple(map(made, workload.requests)))


TOPICS = with_texts(topical(60, k=6, seed=3).workload())
CHATS = with_texts(sessions(6, turns=4, k=5, blocks=400, seed=1).workload())


def test_every_arm_holds_every_block_of_every_turn() -> None:
    for workload, multi_turn in ((TOPICS, False), (CHATS, True)):
        for case in draw_cases(workload, Sampling(QUALITY_ARMS, multi_turn=multi_turn)).cases:
            assert case.evidence and None not in case.evidence
            for arm in QUALITY_ARMS:
                said = case.prompts[arm]
                assert said[0]["role"] == "system"
                assert [m["role"] for m in said[1:]] == ["user", "assistant"] * (len(said) // 2 - 1) + ["user"]
                assert said[-1]["content"].endswith(case.question)
                for block in workload.requests[case.number].request.blocks:
                    assert str(block.text) in case.text(arm)


def test_arms_differ_in_what_their_names_say() -> None:
    cases = draw_cases(TOPICS, Sampling(QUALITY_ARMS)).cases
    annotation = "Please read the context"
    assert not any(annotation in case.text("arrival") + case.text("order") for case in cases)
    annotated = [case for case in cases if annotation in case.text("annotated")]
    assert annotated
    for case in annotated:
        assert case.text("annotated").split(annotation)[0] == case.text("order").removesuffix(case.question)
        assert case.prompts["annotated"] == case.prompts["deduped"]


def test_only_deduped_and_scheduled_refer_to_earlier_turns() -> None:
    cases = draw_cases(CHATS, Sampling(QUALITY_ARMS, multi_turn=True, min_turn=1)).cases
    assert len(cases) == 18
    reference = "in the previous conversation."
    assert any(reference in case.text("deduped") for case in cases)
    for case in cases:
        assert not any(reference in case.text(arm) for arm in ("arrival", "order", "annotated"))
        assert len({case.prompts[arm][-2]["content"] for arm in QUALITY_ARMS}) == 1


def test_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    numbers = [[c.number for c in draw_cases(TOPICS, Sampling(sample=n, seed=5)).cases] for n in (7, 20, 99)]
    assert numbers[1][:7] == numbers[0]
    assert numbers[2][:20] == numbers[1]
    assert sorted(numbers[2]) == list(range(60))
    assert [c.number for c in draw_cases(TOPICS, Sampling(sample=7, seed=6)).cases] != numbers[0]


def test_what_can_be_scored() -> None:
    drawn = draw_cases(TOPICS, Sampling(only_changed=True))
    assert (drawn.requests, drawn.scorable) == (60, 60)
    assert 0 < len(drawn.cases) == drawn.changed < 60
    assert all(any(prompt != case.prompts["arrival"] for prompt in case.prompts.values()) for case in drawn.cases)
    assert draw_cases(CHATS, Sampling(multi_turn=True, max_prompt_tokens=150)).scorable < 24


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"arms": ("arrival", "fast")}, "has 'fast'"),
        ({"arms": ("order",)}, "name arrival too"),
        ({"sample": 0}, "sample: is 0"),
        ({"max_prompt_tokens": 3}, "no request that can be scored"),
    ],
)
def test_bad_settings(how: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_cases(TOPICS, Sampling(**how))  # type: ignore[arg-type]


def test_without_texts_nothing_can_be_scored() -> None:
    with pytest.raises(ConfigError, match="no request that can be scored"):
        draw_cases(topical(5).workload(), Sampling())
