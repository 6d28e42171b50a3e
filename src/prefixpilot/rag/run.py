"""``run_batch`` and ``arun_batch``: the calls of a batch, so many at a time, started in the planned order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

from prefixpilot.core import Plan
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.rag.batch import Batch, BatchRequest, BatchResult, Job
from prefixpilot.rag.client import (
    CALL_ERRORS,
    AsyncClient,
    Client,
    Reply,
    acomplete,
    arguments_of,
    check_options,
    complete,
)
from prefixpilot.rag.journal import Journal

_SETTINGS: Final = ("done", "concurrency", "pilot", "progress")
PathLike: TypeAlias = str | os.PathLike[str]


def run_batch(
    client: Client,
    requests: Sequence[BatchRequest],
    *,
    done: PathLike | None = None,
    concurrency: int = 8,
    pilot: ContextPilot | None = None,
    progress: bool = True,
    **options: Any,
) -> list[BatchResult]:
    """Plan all requests together, run them, and return one result for each, in the order given.

    A call that fails (after the client's own retries) gives a result with its ``error``. With ``done`` the run can be
    ended at any time, even killed: run again with the same requests, it makes only the calls that are not in the file,
    and those that failed. Calls that were under way when it was killed, at most ``concurrency``, are made again.

    Args:
        client: any ``openai.OpenAI``; used from several threads, as it may be.
        done: a JSONL file of what is done; made if it is not there.
        concurrency: calls at a time, 1 or more. What shares a prefix starts together, so on an engine that does not
            wait for a prefix that is being computed a few are enough.
        pilot: to plan with; a new one if ``None``.
        progress: a bar on stderr, on a terminal only.
        options: arguments of ``chat.completions.create`` for all requests: ``model``, ``max_tokens``, ...

    Raises:
        InvalidRequestError: a request that cannot be used, or that has changed since ``done`` was written; an option
            that the client's call does not take.
        ConfigError: ``done`` or ``concurrency`` cannot be used.
        TraceError: a line of ``done`` cannot be read.
        EngineError: 20 calls in a row have failed.
    """
    with _opened(client, requests, done, concurrency, pilot, progress, options) as batch:
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="batch")
        try:
            calls = [pool.submit(_one, client, batch, job, plan) for job, plan in batch.todo]
            for call in as_completed(calls):
                call.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return batch.results()


async def arun_batch(
    client: AsyncClient,
    requests: Sequence[BatchRequest],
    *,
    done: PathLike | None = None,
    concurrency: int = 8,
    pilot: ContextPilot | None = None,
    progress: bool = True,
    **options: Any,
) -> list[BatchResult]:
    """As :func:`run_batch`, on asyncio. Planning and what goes to disk happens in threads."""
    opened = _opened(client, requests, done, concurrency, pilot, progress, options)
    batch = await asyncio.to_thread(opened.__enter__)
    try:
        jobs = iter(batch.todo)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_some(client, batch, jobs))
        return batch.results()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        opened.__exit__(None, None, None)


def _one(client: Client, batch: Batch, job: Job, plan: Plan) -> None:
    try:
        outcome: Reply | Exception = complete(client, batch.call(job, plan))
    except CALL_ERRORS as error:
        outcome = error
    batch.record(job, outcome)


async def _some(client: AsyncClient, batch: Batch, jobs: Iterator[tuple[Job, Plan]]) -> None:
    for job, plan in jobs:
        try:
            outcome: Reply | Exception = await acomplete(client, batch.call(job, plan))
        except CALL_ERRORS as error:
            outcome = error
        await asyncio.to_thread(batch.record, job, outcome)


@contextmanager
def _opened(
    client: Client | AsyncClient,
    requests: Sequence[BatchRequest],
    done: PathLike | None,
    concurrency: int,
    pilot: ContextPilot | None,
    progress: bool,
    options: dict[str, Any],
) -> Iterator[Batch]:
    """The batch, planned; its journal and its progress bar are closed at the end."""
    from tqdm import tqdm

    check_options(options, arguments_of(client), _SETTINGS)
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigError("concurrency", f"is {concurrency!r}", "use an int of 1 or more")
    with ExitStack() as stack:
        journal = None if done is None else stack.enter_context(Journal(done))
        batch = Batch(requests, options, pilot, journal)
        hidden = None if progress else True
        bar = tqdm(total=len(requests), initial=batch.finished, desc="running", unit=" requests", disable=hidden)
        batch.on_done = stack.enter_context(bar).update
        yield batch
