"""Many questions that are known beforehand: planned together, run in that order, resumable."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from openai import OpenAI

from prefixpilot.rag import BatchRequest, run_batch

CHAPTERS = [f"Chapter {n}. " + f"What happens in chapter {n} is told at some length here. " * 10 for n in range(9)]


def part(n: int) -> list[str]:
    return [CHAPTERS[n % 3 * 3 + (n // 3 + i) % 3] for i in range(3)]  # as a retriever ranks them


requests = [BatchRequest.asking(f"q{n}", f"Who is named first, asks reader {n}?", part(n)) for n in range(30)]

with TemporaryDirectory() as folder, OpenAI() as client:
    done = Path(folder, "done.jsonl")  # keep it where it lasts: a run that was killed goes on from here
    model = os.environ.get("MODEL", "smollm2")
    results = run_batch(client, requests, done=done, concurrency=2, model=model, max_tokens=20)
    again = run_batch(client, requests, done=done, concurrency=2, model=model, max_tokens=20)  # makes no call at all

cached = sum(result.usage.cached_tokens or 0 for result in results)
total = sum(result.usage.prompt_tokens or 0 for result in results)
print(f"{len(results)} answers, {sum(result.error is not None for result in results)} failed")
print(f"{100 * cached / total:.0f} % of the prompt tokens came from the cache")
print(f"the second run is the first: {again == results}")
