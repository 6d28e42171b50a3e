"""Chain-of-Agents over many questions: every document is read once by the engine, however many chains need it."""

import os

from openai import OpenAI

from prefixpilot.rag import ChainOfAgents

REPORTS = [f"Report {n}. " + f"The station of district {n} counted {n * 17} birds this month. " * 12 for n in range(20)]

questions = [f"Which of the districts asked for in round {n} counted most birds?" for n in range(8)]
contexts = [[REPORTS[(3 * n + 2 * i) % 20] for i in range(6)] for n in range(8)]  # as a retriever ranks them

team = ChainOfAgents(
    OpenAI(),  # or one client for each replica: a document then goes where it has been read
    model=os.environ.get("MODEL", "smollm2"),
    workers=6,  # each reads one report, and the notes of the worker before
    concurrency=4,
    max_tokens=30,
)
answers = team.answer(questions, contexts)

total = sum(answer.usage.prompt_tokens or 0 for answer in answers)
prefilled = sum(answer.usage.prefilled_tokens or 0 for answer in answers)
print(f"{len(answers)} answers from {sum(len(answer.notes) for answer in answers)} notes")
print(f"{total} prompt tokens, {100 * prefilled / total:.0f} % of them computed")
