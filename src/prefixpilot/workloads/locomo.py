"""LoCoMo: ten conversations over months, and 1,986 questions about them: what a memory of a user has to answer.

Adyasha Maharana et al., "Evaluating Very Long-Term Conversational Memory of LLM Agents", ACL 2024, arXiv 2402.17753.
Licence: CC BY-NC 4.0, so not for commercial use. File: ``locomo10.json`` of the authors' repository (``data/``). Not on
the hub by its authors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prefixpilot.core import ContextBlock
from prefixpilot.workloads.files import one_of, read_entries
from prefixpilot.workloads.questions import Entry, Question, QuestionSet

_TURN: Final = re.compile(r"D\d+:\d+")


def read(path: Path) -> QuestionSet:
    """The set from the file, or from a folder that holds it.

    Raises:
        TraceError: it is not there, or is not as published.
    """
    return parse(read_entries(one_of(path, "locomo*.json")))


def parse(conversations: Sequence[Entry]) -> QuestionSet:
    """The set: each turn of a conversation is a memory, and a question searches those of its own conversation."""
    corpora: dict[str, list[ContextBlock]] = {}
    asked: list[Question] = []
    for sample in conversations:
        name = sample.text("sample_id")
        corpora[name] = list(_memories(name, sample.entry("conversation")))
        for number, row in enumerate(sample.entries("qa")):
            answer = row.text("answer", "") or row.text("adversarial_answer", "")
            evidence = tuple(f"{name}/{turn}" for item in row.texts("evidence") for turn in _TURN.findall(item))
            answers = (answer,) if answer else ()
            asked.append(Question(f"{name}/q{number}", row.text("question"), answers, evidence, name, name))
    return QuestionSet("locomo", corpora, asked)


def _memories(name: str, conversation: Entry) -> Iterator[ContextBlock]:
    number = 1
    while f"session_{number}_date_time" in conversation:
        date = conversation.text(f"session_{number}_date_time")
        for turn in conversation.entries(f"session_{number}"):
            photo = turn.text("blip_caption", "")
            shown = f" [shared a photo: {photo}]" if photo else ""
            said = f"[{date}] {turn.text('speaker')}: {turn.text('text')}{shown}"
            yield ContextBlock(text=said, id=f"{name}/{turn.text('dia_id')}")
        number += 1
