"""The analysis of a log: its passes, side by side on the machine's cores, and what they come to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from prefixpilot.bench.analysis.fronts import Finding
from prefixpilot.bench.analysis.passes import AsItCame, AsItCamePass, AsTreated, Line, TreatedPass, Way
from prefixpilot.bench.analysis.report import ARMS, Analysis, ArmResult, BlockStatistics
from prefixpilot.bench.analysis.workers import workers
from prefixpilot.bench.bound import workload_bound
from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId, ContextBlock, ConversationId, Request, RequestId
from prefixpilot.errors import ConfigError, InvariantError, TraceError
from prefixpilot.pilot import ContextPilot
from prefixpilot.volatile.base import VolatileRules
from prefixpilot.workloads import Workload, WorkloadRequest

_MODELS: Final = 10

OnShare = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """How a log is analysed.

    Attributes:
        cache_tokens: capacity of the modelled cache, LRU; ``None``: no bound.
        schedule: also plan all requests as one batch, for what may be run as a batch.
        processes: that work side by side; ``None``: one a core.
    """

    cache_tokens: int | None = 400_000
    schedule: bool = True
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("cache_tokens", "processes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more, or None")


def analyze(
    path: str | PathLike[str], options: AnalysisOptions | None = None, on_share: OnShare = lambda _: None
) -> Analysis:
    """Analyse a log of requests (:mod:`prefixpilot.workloads.request_log`). No engine, no network.

    Each arm sends what the proxy's own code makes of a request through a model of the engine's cache. O(bytes) time a
    pass, of which there are two to five; memory is bounded by the cache, what a proxy keeps, and some 100 bytes a
    context block, in each process.

    Args:
        on_share: told from time to time which share of the work is done, from 0 to 1.

    Raises:
        TraceError: the file cannot be read, or holds no request at all.
    """
    options = options or AnalysisOptions()
    log, size = os.fspath(path), options.cache_tokens
    full = Way("order+dedupe")
    with workers(log, options.processes, on_share) as hands:
        treated = TreatedPass(log, size, full, explains=True)
        first: list[Future[Any]] = [hands.submit(AsItCamePass(log, size)), hands.submit(treated)]
        # Wanted only if texts are replaced, as in most logs with documents; a core would have nothing to do meanwhile.
        undeduped = hands.submit(TreatedPass(log, size, Way("order", dedupe=False))) if hands.several else None
        came, taken = hands.results(first)
        if not came.lines:
            reason = f"holds no request (line 1 {came.bad_examples[0].reason})" if came.bad else "is empty"
            raise TraceError(log, reason, "give JSON Lines of requests: bodies, or lines of a Batch file")
        if len(came.lines) != len(taken.blocks):
            raise InvariantError(f"{log}: {len(came.lines)} requests as they came, {len(taken.blocks)} as treated")
        requests = _as_requests(came, taken.blocks)
        best, rest = full, list[TreatedPass]()
        if taken.replaced and undeduped is None:
            rest.append(TreatedPass(log, size, Way("order", dedupe=False)))
        rules = _rules(taken.findings)
        if rules.any:
            best = Way(f"{full.name}+rules", rules=rules)
            rest.append(TreatedPass(log, size, best))
        if options.schedule and any(taken.blocks):
            scheduled = best._replace(name=f"{best.name}+schedule")
            rest.append(TreatedPass(log, size, scheduled, _schedule(requests, came.lines, options)))
        under_way = [undeduped] if undeduped is not None and taken.replaced else []
        others = hands.results([*under_way, *(hands.submit(each) for each in rest)])
    arms = {found.name: found for found in (came.result, taken.result, *(other.result for other in others))}
    sent = next((other for other in others if other.result.name == best.name), taken)
    return _analysis(
        Path(path).name, came, taken, sent, requests, options, tuple(arms[name] for name in ARMS if name in arms)
    )


def _as_requests(came: AsItCame, blocks: Sequence[tuple[ContextBlock, ...]]) -> list[Request]:
    """The requests as a planner sees them, in the order of the log."""
    return [
        Request(own, RequestId(str(i)), ConversationId(str(came.openers[i])), scope=came.models[i])
        for i, own in enumerate(blocks)
    ]


def _rules(findings: Sequence[Finding]) -> VolatileRules:
    """Those that would help."""
    found = {finding.cause for finding in findings}
    return VolatileRules(
        clock="round" if "clock" in found else "off",
        ids="ids" in found,
        memory="memory" in found,
        billing_header="billing-header" in found,
        tool_order="tool-order" in found,
    )


def _schedule(requests: Sequence[Request], lines: Sequence[Line], options: AnalysisOptions) -> list[Line]:
    """The lines as one planned batch; turns of a conversation keep their order."""
    pilot = ContextPilot(PilotConfig(cache_tokens=options.cache_tokens))
    return [lines[entry.position] for entry in pilot.optimize_batch(requests)]


def _statistics(requests: Sequence[Request]) -> BlockStatistics:
    entries = [WorkloadRequest(request, request.request_id, 0, "") for request in requests if request.blocks]
    tokens = repeated = count = 0
    seen: set[BlockId | None] = set()
    for request in requests:
        for block in request.blocks:
            count += 1
            tokens += block.tokens or 0
            repeated += (block.tokens or 0) if block.id in seen else 0
        seen.update(block.id for block in request.blocks)
    bound = workload_bound(Workload("log", tuple(entries))) if entries else 0
    return BlockStatistics(len(entries), count, tokens, repeated, bound)


def _analysis(
    name: str,
    came: AsItCame,
    taken: AsTreated,
    best: AsTreated,
    requests: Sequence[Request],
    options: AnalysisOptions,
    arms: tuple[ArmResult, ...],
) -> Analysis:
    return Analysis(
        log=name,
        bytes=came.size,
        requests=len(came.lines),
        refused=came.refused,
        touched=best.touched,
        replaced=best.replaced,
        conversations=len(set(came.openers)),
        bad_lines=came.bad,
        bad_examples=tuple(came.bad_examples),
        apis=tuple(came.apis.most_common()),
        models=tuple(Counter(came.models).most_common(_MODELS)),
        cache_tokens=options.cache_tokens,
        arms=arms,
        blocks=_statistics(requests),
        findings=tuple(taken.findings),
        unproved=tuple(taken.unproved),
    )
