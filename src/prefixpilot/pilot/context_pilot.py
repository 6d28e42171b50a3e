"""One object that plans requests, learns what the engine holds, and forgets what it evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, NamedTuple

from prefixpilot.config import PilotConfig
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord, ConversationStore
from prefixpilot.core import DEFAULT_TENANT, ConversationId, Plan, PlannedRequest, Request, TenantId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.pilot.batch import Progress, check_distinct_ids, plan_batch
from prefixpilot.pilot.forest import Forest
from prefixpilot.pilot.planner import Planner
from prefixpilot.pilot.tail_learner import TailLearner


class _ConversationKey(NamedTuple):
    tenant: TenantId
    conversation_id: ConversationId


class ContextPilot:
    """Orders, schedules and de-duplicates the context blocks of requests (paper 4 to 6).

    Deterministic and without I/O. Safe to share between threads: one lock, held for the whole of each call, so that
    calls are as if one came after the other. ``optimize`` holds it for about 0.1 ms; ``optimize_batch``, ``snapshot``
    and ``restore`` for as long as they take, so plan large batches on a pilot that no server waits for. Between
    ``propose`` and ``learn`` other threads may change the index; the plan then still holds every block.

    Args:
        config: see :class:`PilotConfig`.
        count_tokens: length of a text in tokens of the engine's tokenizer, called once per distinct block; without it
            lengths are estimated (:func:`prefixpilot.blocks.estimate_tokens`).

    >>> pilot = ContextPilot(PilotConfig(labels="ids"))
    >>> plan = pilot.optimize(Request.from_ids("C1", [2, 1, 3]))
    >>> pilot.optimize(Request.from_ids("C6", [1, 4, 2])).sent
    (2, 1, 4)
    """

    def __init__(self, config: PilotConfig | None = None, *, count_tokens: Callable[[str], int] | None = None) -> None:
        self.config = config or PilotConfig()
        self._lock = RLock()
        self._count_tokens = count_tokens
        self._planner = Planner(self.config, count_tokens)
        self._conversations: ConversationStore[_ConversationKey] = ConversationStore(self.config.max_conversations)

    # -- plan

    def optimize(self, request: Request) -> Plan:
        """Plan one request and take it as sent: propose, learn, and remember the turn.

        With a ``conversation_id`` each call is one turn, and the caller sends the earlier turns again before it. O(k +
        nodes on matching paths) for k blocks.
        """
        with self._lock:
            record = self._record(request)
            plan = self._planner.propose(request, record, gated=self.config.gate)
            self._planner.learn(plan)
            self._planner.forest.trim()
            self._remember(request, record, plan)
        return plan

    def optimize_batch(
        self, requests: Iterable[Request], on_planned: Callable[[int], object] | None = None
    ) -> list[PlannedRequest]:
        """Plan many requests that are known together, in the order in which to execute them, and take them as sent.

        What shares a prefix with the index inherits it (Algorithm 2, online); the rest is clustered (Algorithm 4). The
        result is a permutation of the requests. The turns of one conversation stay in order, right after each other.

        Args:
            on_planned: called as groups are planned, each time with how many more requests have a plan now.

        Raises:
            InvalidRequestError: two requests have the same id.
        """
        requests = list(requests)
        check_distinct_ids(requests)
        with self._lock:
            return self._plan_batch(requests, Progress(on_planned))

    def _plan_batch(self, requests: Sequence[Request], progress: Progress) -> list[PlannedRequest]:
        openers, later = self._split_turns(requests)
        result = []
        for entry in plan_batch(self._planner, [requests[i] for i in openers], progress):
            position = openers[entry.position]
            self._remember(entry.request, NEW_CONVERSATION, entry.plan)
            result.append(PlannedRequest(position, entry.request, entry.plan))
            turns = later.pop(_conversation_key(entry.request), ())
            result.extend(PlannedRequest(i, requests[i], self.optimize(requests[i])) for i in turns)
        for turns in later.values():
            result.extend(PlannedRequest(i, requests[i], self.optimize(requests[i])) for i in turns)
        progress.reach(len(requests))
        return result

    def propose(self, request: Request, record: ConversationRecord = NEW_CONVERSATION) -> Plan:
        """Plan one request and learn nothing: on turn 0 order its blocks, later de-duplicate them against ``record``.

        Call :meth:`learn` when the engine has the prompt. The request's ``conversation_id`` is not looked at.
        """
        with self._lock:
            return self._planner.propose(request, record, gated=self.config.gate)

    def propose_batch(self, requests: Sequence[Request]) -> list[PlannedRequest]:
        """Plan first turns that are sent at about the same time, in the order in which to send them; learn nothing.

        As :meth:`optimize_batch`, but what the batch itself sends is planned with, not taken as sent. Conversations are
        not looked at.

        Raises:
            InvalidRequestError: two requests have the same id.
        """
        check_distinct_ids(requests)
        with self._lock:
            planned = plan_batch(self._planner, requests, Progress(None), Forest(self.config))
            if not self.config.gate:
                return planned
            return [replace(p, plan=self._planner.gated(p.request, NEW_CONVERSATION, p.plan)) for p in planned]

    def as_given(self, request: Request, record: ConversationRecord = NEW_CONVERSATION) -> Plan:
        """The given order, every block in full, no annotation; labels are counted on from ``record``."""
        with self._lock:
            return self._planner.as_given(request, record)

    def given_cached(self, request: Request) -> int:
        """Tokens of a first turn that are predicted to be cached if its blocks are sent in the given order."""
        with self._lock:
            return self._planner.given_cached(self._planner.as_given(request, NEW_CONVERSATION))

    # -- learn and forget

    def learn(self, plan: Plan) -> None:
        """The engine holds this plan's prompt now: insert it (turn 0), or grow the leaf of its conversation."""
        with self._lock:
            self._planner.learn(plan)
            self._planner.forest.trim()

    def evict(self, request_ids: Iterable[str]) -> int:
        """Forget requests whose prefix the engine evicted (paper 4.1); returns how many were live. O(height) each.

        Ids may be as the engine writes them (:mod:`prefixpilot.request_ids`).

        Raises:
            InvalidRequestError: not a list of strings.
        """
        if isinstance(request_ids, str) or not isinstance(request_ids, Iterable):
            raise InvalidRequestError("request_ids", f"is {request_ids!r}", "give a list of ids")
        ids = list(request_ids)
        for request_id in ids:
            if not isinstance(request_id, str):
                raise InvalidRequestError("request_ids", f"holds {request_id!r}", "give strings")
        with self._lock:
            forest = self._planner.forest
            return sum(forest.evict([live]) for live in map(forest.named, ids) if live is not None)

    def evict_all(self) -> int:
        """The engine's cache is empty: forget all requests, and nothing that was learnt; returns how many were live."""
        with self._lock:
            return self._planner.forest.evict_all()

    def shorten(self, request_id: str, blocks: int) -> bool:
        """Of this request only the first ``blocks`` blocks are still cached; later plans use no more of it.

        With 0 it is forgotten, as by :meth:`evict`. What comes back into the cache lengthens it only when a request
        with it is learnt. Returns whether it was live and held more. O(height + blocks).

        Args:
            request_id: as given with the request, or as the engine writes it.
            blocks: counted over ``Plan.head``, in the order sent; 0 or more.

        Raises:
            InvalidRequestError: ``blocks`` is no such number.
        """
        if type(blocks) is not int or blocks < 0:
            raise InvalidRequestError("blocks", f"is {blocks!r}", "give an int of 0 or more")
        with self._lock:
            live = self._planner.forest.named(request_id)
            return live is not None and self._planner.forest.shorten(live, blocks)

    def resize(self, cache_tokens: int | None) -> None:
        """The index keeps no more than so many tokens from now on, in the place of ``PilotConfig.cache_tokens``.

        For an engine whose capacity is told later, or that tells by itself what is gone (``None``: no bound by it).

        Raises:
            InvalidRequestError: below 1.
        """
        if cache_tokens is not None and (type(cache_tokens) is not int or cache_tokens < 1):
            raise InvalidRequestError("cache_tokens", f"is {cache_tokens!r}", "give an int of 1 or more, or None")
        with self._lock:
            self._planner.forest.cache_tokens = cache_tokens
            self._planner.forest.trim()

    def forget_conversation(self, conversation_id: str, tenant: TenantId = DEFAULT_TENANT) -> None:
        """Drop a conversation's record: its next turn is a first turn again. Needed when its history was cut."""
        with self._lock:
            self._conversations.forget(_ConversationKey(tenant, ConversationId(conversation_id)))

    def reset(self) -> int:
        """Forget everything: requests, lengths of blocks, conversations, what was learnt; returns how many requests."""
        with self._lock:
            gone, cache_tokens = self.live_requests, self._planner.forest.cache_tokens
            self._planner = Planner(self.config, self._count_tokens)
            self._planner.forest.cache_tokens = cache_tokens
            self._conversations = ConversationStore(self.config.max_conversations)
        return gone

    @property
    def live_requests(self) -> int:
        """Number of requests in the index."""
        return len(self._planner.forest)

    # -- keep

    def snapshot(self) -> dict[str, Any]:
        """The index and what is learnt of tails, as data that ``json`` can write. Conversations are not part of it."""
        with self._lock:
            return {**self._planner.forest.snapshot(), "tails": self._planner.tails.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take over what :meth:`snapshot` made; this pilot must be empty. Snapshots of earlier versions can be read.

        Raises:
            InvalidRequestError: not empty, or not such a snapshot. Nothing has changed then.
        """
        with self._lock:
            learnt = self._planner.tails
            if isinstance(snapshot, Mapping) and "tails" in snapshot:
                learnt = TailLearner(self.config)
                learnt.restore(snapshot["tails"])
            self._planner.forest.restore(snapshot)
            self._planner.tails = learnt

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a structure is broken. For tests: O(everything)."""
        with self._lock:
            self._planner.forest.check_invariants()
            self._planner.tails.check_invariants()

    # -- conversations

    def _record(self, request: Request) -> ConversationRecord:
        key = _conversation_key(request)
        return NEW_CONVERSATION if key is None else self._conversations.get(key)

    def _remember(self, request: Request, record: ConversationRecord, plan: Plan) -> None:
        key = _conversation_key(request)
        if key is not None:
            self._conversations.put(key, record.after(plan))

    def _split_turns(self, requests: Sequence[Request]) -> tuple[list[int], dict[_ConversationKey | None, list[int]]]:
        """Positions of first turns, and of later turns by conversation."""
        openers: list[int] = []
        opened: set[_ConversationKey] = set()
        later: dict[_ConversationKey | None, list[int]] = {}
        for position, request in enumerate(requests):
            key = _conversation_key(request)
            if key is None or (key not in opened and not self._conversations.get(key).turns):
                openers.append(position)
                if key is not None:
                    opened.add(key)
            else:
                later.setdefault(key, []).append(position)
        return openers, later


def _conversation_key(request: Request) -> _ConversationKey | None:
    if request.conversation_id is None:
        return None
    return _ConversationKey(request.tenant, request.conversation_id)
