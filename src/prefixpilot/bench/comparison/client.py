"""The load: requests of an arm over HTTP, in a closed loop of so many clients or at given times, each one timed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from prefixpilot.bench.comparison.arms import Arm, Message, Outgoing, body_of
from prefixpilot.bench.comparison.prepared import BenchRequest
from prefixpilot.errors import ConfigError, EngineError, MissingExtraError

try:
    import aiohttp
except ImportError:
    raise MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"') from None

_MAX_ERROR: Final = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, answered.

    Attributes:
        number: in arrival order.
        prompt_tokens, cached_tokens: the engine's own counts.
        ttft_s: from sending to the first content.
        total_s: to the end of the stream.
    """

    number: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    total_s: float

    @property
    def prefilled_tokens(self) -> int:
        """What the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent.

    Attributes:
        concurrency: requests under way at most (closed loop); turns of a session always one after the other.
        rate: requests a second at random times (open loop, Poisson); ``None``: as soon as a client is free.
        max_tokens: bound of each reply.
        timeout_s: for one request.
        seed: of the times.
        model: name in the bodies.
    """

    concurrency: int = 1
    rate: float | None = None
    max_tokens: int = 8
    timeout_s: float = 600.0
    seed: int = 0
    model: str = "bench"

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError("rate", f"is {self.rate!r}", "use a number above 0, or leave it out")


@dataclass(frozen=True, slots=True)
class Target:
    """Where an arm's requests go.

    Attributes:
        url: without ``/v1``.
        opening: a system message that no other cell has; ``None`` where the cache is cold without it.
    """

    url: str
    opening: str | None = None


async def run_load(
    target: Target,
    arm: Arm,
    requests: Sequence[BenchRequest],
    sends: Sequence[Outgoing],
    load: Load,
    on_answer: Callable[[], object] = lambda: None,
    turn: asyncio.Lock | None = None,
) -> tuple[list[Sample], float]:
    """Send all of them; the samples in the order sent, and the seconds that it took.

    Args:
        on_answer: called after each request.
        turn: held while a request is under way; loads that share it take turns, request by request.

    Raises:
        EngineError: a request failed, or its answer has no counts.
    """
    timeout = aiohttp.ClientTimeout(total=load.timeout_s)
    # llama.cpp closes a connection after a stream without saying so: each request has one of its own, in all arms.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        run = _Run(session, target, arm, requests, load, on_answer, turn or asyncio.Semaphore(load.concurrency))
        start = perf_counter()
        samples = await run.all(sends)
        return samples, perf_counter() - start


@dataclass(slots=True)
class _Run:
    session: aiohttp.ClientSession
    target: Target
    arm: Arm
    requests: Sequence[BenchRequest]
    load: Load
    on_answer: Callable[[], object]
    turn: asyncio.Lock | asyncio.Semaphore
    histories: dict[str, list[Message]] = field(default_factory=dict)

    async def all(self, sends: Sequence[Outgoing]) -> list[Sample]:
        """In order of ``sends``; a request whose session is under way lets others go first."""
        pending = list(enumerate(sends))
        due = _times(len(sends), self.load)
        samples: dict[int, Sample] = {}
        busy: set[str] = set()
        tasks: dict[asyncio.Task[Sample], tuple[int, str]] = {}
        start = perf_counter()
        try:
            while pending or tasks:
                now = perf_counter() - start
                free = self.load.concurrency - len(tasks)
                for place, send in self._ready(pending, busy, free, now, due):
                    name = self.requests[send.number].session
                    busy.add(name)
                    tasks[asyncio.create_task(self._one(send))] = (place, name)
                wait = None
                if pending and len(tasks) < self.load.concurrency and due[pending[0][0]] > now:
                    wait = due[pending[0][0]] - now
                if not tasks:
                    await asyncio.sleep(wait or 0)
                    continue
                done, _ = await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    place, name = tasks.pop(task)
                    busy.discard(name)
                    samples[place] = task.result()
                    self.on_answer()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [samples[place] for place in range(len(sends))]

    def _ready(
        self, pending: list[tuple[int, Outgoing]], busy: set[str], free: int, now: float, due: Sequence[float]
    ) -> list[tuple[int, Outgoing]]:
        """Takes out of ``pending`` what may go now."""
        taken: list[tuple[int, Outgoing]] = []
        begun = set(busy)
        for entry in pending:
            if len(taken) >= free or due[entry[0]] > now:
                break
            name = self.requests[entry[1].number].session
            if name not in begun:
                taken.append(entry)
            begun.add(name)
        for entry in taken:
            pending.remove(entry)
        return taken

    async def _one(self, send: Outgoing) -> Sample:
        request = self.requests[send.number]
        history = self.histories.setdefault(request.session, self._opening())
        more = {"model": self.load.model, "max_tokens": self.load.max_tokens, "temperature": 0}
        body = body_of(request, send, history, more)
        headers = dict(self.arm.headers)
        if self.arm.through_proxy:
            headers["X-PrefixPilot-Conversation"] = request.session
        async with self.turn:
            answer = await _stream(self.session, self.target.url, body, headers)
        history.append(body["messages"][-1])
        history.append({"role": "assistant", "content": answer.text})
        return Sample(send.number, answer.prompt_tokens, answer.cached_tokens, answer.ttft_s, answer.total_s)

    def _opening(self) -> list[Message]:
        return [] if self.target.opening is None else [{"role": "system", "content": self.target.opening}]


@dataclass(slots=True)
class _Answer:
    text: str = ""
    prompt_tokens: int = -1
    cached_tokens: int = -1
    ttft_s: float = -1.0
    total_s: float = -1.0


async def _stream(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> _Answer:
    payload = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer, start = _Answer(), perf_counter()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=payload, headers=headers) as response:
            if response.status != 200:
                said = (await response.text())[:_MAX_ERROR]
                raise EngineError(f"{url} answered {response.status}: {said}")
            async for event in _events(response):
                _take(answer, event, perf_counter() - start)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineError(f"{url} did not answer: {error!r}") from error
    answer.total_s = perf_counter() - start
    if answer.ttft_s < 0:
        answer.ttft_s = answer.total_s
    if answer.cached_tokens < 0 or answer.prompt_tokens < 0:
        raise EngineError(
            "the engine's stream has no usage.prompt_tokens_details.cached_tokens; doctor says what to set"
        )
    return answer


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])


def _take(answer: _Answer, event: Mapping[str, Any], now: float) -> None:
    if "error" in event:
        raise EngineError(f"the engine reported an error in its stream: {event['error']}")
    for choice in event.get("choices", ()):
        text = choice.get("delta", {}).get("content") or ""
        answer.text += text
        if text and answer.ttft_s < 0:
            answer.ttft_s = now
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens", -1)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        answer.cached_tokens = -1 if cached is None else cached


def _times(count: int, load: Load) -> list[float]:
    """When each request may go at the earliest, in seconds."""
    if load.rate is None:
        return [0.0] * count
    rng, now, times = random.Random(load.seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(load.rate)
        times.append(now)
    return times
