"""MT-RAG: 110 conversations of people with a RAG system, 842 turns in four domains, each with a reference answer.

Yannis Katsis et al., "MTRAG: A Multi-Turn Conversational Benchmark for Evaluating Retrieval-Augmented Generation
Systems", TACL 2025, doi 10.1162/TACL.a.19. Licence: Apache-2.0 (the passages keep that of their sources). File:
``RAG.jsonl`` of the authors' repository (``generation_tasks/``), which holds the passages that were retrieved, or
``reference.jsonl``, which holds those that people chose. Not on the hub in this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefixpilot.core import ContextBlock
from prefixpilot.errors import TraceError
from prefixpilot.workloads.files import one_of, read_lines
from prefixpilot.workloads.questions import Entry, Question, QuestionSet


def read(path: Path) -> QuestionSet:
    """The set from the file, or from a folder that holds it.

    Raises:
        TraceError: it is not there, or is not as published.
    """
    return parse(read_lines(one_of(path, "RAG.jsonl", "reference.jsonl")))


def parse(tasks: Sequence[Entry]) -> QuestionSet:
    """The set from its tasks; a task is a turn, and its question what the user said last."""
    blocks: dict[str, ContextBlock] = {}
    asked = []
    for task in sorted(tasks, key=lambda task: int(task.text("turn"))):
        said = task.entries("input")
        if not said:
            raise TraceError(f"{task.where}.input", "is empty", "give the file as it is published")
        found = [_block(context, blocks) for context in task.entries("contexts")]
        answers = tuple(target.text("text") for target in task.entries("targets"))
        question = Question(
            task.text("task_id"),
            said[-1].text("text"),
            answers,
            session=task.text("conversation_id"),
            found=tuple({block.id: block for block in found}.values()),
        )
        asked.append(question)
    return QuestionSet("mtrag", {}, asked)


def _block(context: Entry, blocks: dict[str, ContextBlock]) -> ContextBlock:
    """One object for each passage. Its text begins with its title."""
    name = context.text("document_id")
    return blocks.setdefault(name, ContextBlock(text=context.text("text"), id=name))
