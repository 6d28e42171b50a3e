"""The context indexes of one pilot: a tree per tenant and scope, bounded together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from prefixpilot.config import PilotConfig
from prefixpilot.core import BatchContext, BlockId, RequestId, TenantId
from prefixpilot.errors import InvalidRequestError, InvariantError
from prefixpilot.index import ContextIndex, build, check_tree, restore_tree, tree_snapshot
from prefixpilot.index.build import SortKey
from prefixpilot.index.match import Guide
from prefixpilot.request_ids import spellings

SNAPSHOT_VERSION = 2
_READ_VERSIONS = (1, 2)
"""Version 1 had no bytes as ids, and nothing of what is learnt of tails."""
REMEMBERED_GONE = 10_000
"""Evicted requests whose ids are remembered: an engine that tells of one of them again means no other."""


class TreeKey(NamedTuple):
    """What must be equal for KV reuse."""

    tenant: TenantId
    scope: str


class Forest:
    """Trees by key, and one order of use over the live requests of all of them.

    The bound is on live requests and, if the engine's capacity is known, on tokens; the least recently used request
    goes first, as in the engine's own LRU. A tree goes with its last request.

    Attributes:
        cache_tokens: the engine's capacity; ``None`` for no bound by it.
    """

    def __init__(self, config: PilotConfig) -> None:
        self._config = config
        self.cache_tokens = config.cache_tokens
        self._trees: dict[TreeKey, ContextIndex] = {}
        self._key_of: OrderedDict[RequestId, TreeKey] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        """Number of live requests."""
        return len(self._key_of)

    def is_empty(self, key: TreeKey) -> bool:
        """Whether no context with this key is live."""
        return key not in self._trees

    def live(self, key: TreeKey) -> int:
        """Number of live requests with this key."""
        tree = self._trees.get(key)
        return 0 if tree is None else len(tree)

    def match(self, key: TreeKey, blocks: Sequence[BlockId], guide: Guide | None = None) -> tuple[BlockId, ...]:
        """The prefix that a context of distinct blocks inherits: some of its blocks, in the cache's order.

        One that ``guide`` allows; the paper's matcher does not ask it.
        """
        tree = self._trees.get(key)
        if tree is None:
            return ()
        if self._config.matcher == "paper":
            return tree.search(blocks).prefix
        return tree.match_prefix(blocks, guide).prefix

    def sent_prefix(self, key: TreeKey, blocks: tuple[BlockId, ...]) -> int:
        """How many leading blocks of a context, sent as it is, an earlier one began with."""
        tree = self._trees.get(key)
        return 0 if tree is None else len(tree.locate(blocks).prefix)

    def insert(
        self,
        key: TreeKey,
        request_id: RequestId,
        sent: tuple[BlockId, ...],
        tokens: tuple[int, ...],
        ranks: tuple[int, ...],
    ) -> None:
        """A context was sent; a live request of the same id is replaced. Call :meth:`trim` afterwards.

        Args:
            sent: distinct, in prompt order; ``tokens`` in parallel.
            ranks: in parallel; the retriever's order, on which Algorithm 1 is run.
        """
        if self._key_of.get(request_id) == key and self.context(request_id) == sent:
            self._trees[key].touch(request_id)
            self._key_of.move_to_end(request_id)
            return
        if request_id in self._key_of:
            self.evict([request_id])
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = ContextIndex(self._config.alpha)
        before = tree.total_tokens
        if self._config.matcher == "paper":
            retrieved = [block for _, block in sorted(zip(ranks, sent, strict=True), key=itemgetter(0))]
            tree.insert_at(tree.search(retrieved), sent, tokens, request_id)
        else:
            tree.insert(sent, tokens, request_id)
        self._tokens += tree.total_tokens - before
        self._key_of[request_id] = key

    def build(
        self,
        key: TreeKey,
        contexts: Sequence[BatchContext],
        sort_key: SortKey,
        arrange: Callable[[BatchContext], BatchContext] = lambda context: context,
        on_planned: Callable[[int], object] = lambda contexts: None,
    ) -> None:
        """Plan contexts none of which shares a prefix with the tree, and insert them. Call :meth:`trim` afterwards.

        With the paper's matcher the clusters of Algorithm 4 become the tree itself. Otherwise the reordered contexts
        are inserted in the planner's order: siblings of a cluster tree may begin with the same block, and share it in
        the engine's cache. ``arrange`` makes of a planned context the one that is sent; the paper's matcher does not
        ask it. ``on_planned`` hears how many contexts have been planned, as groups of them are.
        """
        self.evict(context.request_id for context in contexts)
        tree = self._trees.setdefault(key, ContextIndex(self._config.alpha))
        before = tree.total_tokens
        if self._config.matcher == "paper":
            build(tree, contexts, sort_key, self._config.device_for(len(contexts)))
        else:
            for context in map(arrange, self._ordered(contexts, sort_key, on_planned)):
                tree.insert(context.blocks, context.tokens, context.request_id)
        self._tokens += tree.total_tokens - before
        self._key_of.update((context.request_id, key) for context in contexts)

    def _ordered(
        self, contexts: Sequence[BatchContext], sort_key: SortKey, on_planned: Callable[[int], object]
    ) -> list[BatchContext]:
        if self._config.planner == "shared-tokens":
            from prefixpilot.planners.shared_tokens import plan_shared_tokens

            return plan_shared_tokens(contexts, sort_key, self._config.page_size, on_planned=on_planned)
        clusters = ContextIndex(self._config.alpha)
        build(clusters, contexts, sort_key, self._config.device_for(len(contexts)))
        leaves = ((request_id, clusters.leaf(request_id)) for request_id in clusters.paths())
        return [BatchContext(request_id, leaf.blocks, leaf.tokens) for request_id, leaf in leaves]

    def grow(self, request_id: RequestId, blocks: int) -> None:
        """A live request's conversation has had another turn; it is the most recently used now. O(height)."""
        key = self._key_of.get(request_id)
        if key is None:
            return
        tree = self._trees[key]
        tree.grow_leaf(tree.leaf(request_id), blocks)
        self._key_of.move_to_end(request_id)

    def evict(self, request_ids: Iterable[RequestId]) -> int:
        """Forget requests; returns how many were live."""
        known = 0
        for request_id in request_ids:
            key = self._key_of.pop(request_id, None)
            if key is None:
                continue
            known += 1
            self._remember_gone(request_id)
            tree = self._trees[key]
            before = tree.total_tokens
            tree.evict([request_id])
            self._tokens += tree.total_tokens - before
            if not len(tree):
                del self._trees[key]
        return known

    def evict_all(self) -> int:
        """Forget every request; returns how many there were."""
        gone = len(self._key_of)
        for request_id in self._key_of:
            self._remember_gone(request_id)
        self._trees.clear()
        self._key_of.clear()
        self._tokens = 0
        return gone

    def shorten(self, request_id: RequestId, blocks: int) -> bool:
        """Of a live request only the first ``blocks`` blocks are still cached; whether that was news.

        With 0 it is evicted. Its place in the order of use stays. O(height + blocks).
        """
        key = self._key_of.get(request_id)
        if key is None:
            return False
        if not blocks:
            return bool(self.evict([request_id]))
        tree = self._trees[key]
        before = tree.total_tokens
        news = tree.shorten(request_id, blocks)
        self._tokens += tree.total_tokens - before
        return news

    def named(self, request_id: str) -> RequestId | None:
        """The live request that an engine may mean by this id; ``None`` if there is none, or it means one that was
        evicted lately. O(1)."""
        if request_id in self._key_of:
            return RequestId(request_id)
        known = next((s for s in spellings(request_id) if s in self._key_of or s in self._gone), None)
        return RequestId(known) if known is not None and known in self._key_of else None

    def _remember_gone(self, request_id: RequestId) -> None:
        self._gone[request_id] = None
        self._gone.move_to_end(request_id)
        if len(self._gone) > REMEMBERED_GONE:
            self._gone.popitem(last=False)

    def trim(self) -> None:
        """Evict the least recently used requests until the bounds hold; the newest always stays."""
        capacity = self.cache_tokens
        while len(self._key_of) > 1 and (
            len(self._key_of) > self._config.max_contexts or (capacity is not None and self._tokens > capacity)
        ):
            self.evict([next(iter(self._key_of))])

    def paths(self, key: TreeKey) -> dict[RequestId, tuple[int, ...]]:
        """Search paths of the live requests of one tree."""
        tree = self._trees.get(key)
        return {} if tree is None else tree.paths()

    def context(self, request_id: RequestId) -> tuple[BlockId, ...]:
        """The ordered context of a live request."""
        return self._trees[self._key_of[request_id]].leaf(request_id).blocks

    def snapshot(self) -> dict[str, Any]:
        """Everything as data that ``json`` can write."""
        trees = [{"tenant": k.tenant, "scope": k.scope, **tree_snapshot(t)} for k, t in self._trees.items()]
        return {"version": SNAPSHOT_VERSION, "trees": trees, "order_of_use": list(self._key_of)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """The state that :meth:`snapshot` described, into an empty forest.

        Raises:
            InvalidRequestError: not empty, another version, or malformed. Nothing has changed then.
        """
        if self._key_of:
            raise InvalidRequestError("restore", "the pilot is not empty", "restore into a new one")
        if not isinstance(data, Mapping) or data.get("version") not in _READ_VERSIONS:
            raise InvalidRequestError("snapshot.version", f"is not one of {_READ_VERSIONS}", "make the snapshot again")
        if not isinstance(data.get("trees"), list) or not isinstance(data.get("order_of_use"), list):
            raise InvalidRequestError("snapshot", "lacks trees or order_of_use", "make the snapshot again")
        trees = {}
        grown = self._config.matcher != "paper"
        for place, entry in enumerate(data["trees"]):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("scope"), str):
                raise InvalidRequestError(f"snapshot.trees[{place}]", "lacks a scope", "make the snapshot again")
            key = TreeKey(TenantId(str(entry.get("tenant"))), entry["scope"])
            if key in trees:
                raise InvalidRequestError(f"snapshot.trees[{place}]", "stands twice", "make the snapshot again")
            trees[key] = restore_tree(entry, grown=grown)
        owner = {r: key for key, tree in trees.items() for r in tree.paths()}
        order_of_use = data["order_of_use"]
        if not all(isinstance(r, str) for r in order_of_use) or sorted(owner) != sorted(order_of_use):
            raise InvalidRequestError("snapshot.order_of_use", "does not name the requests", "make the snapshot again")
        self._trees = trees
        self._key_of = OrderedDict((RequestId(r), owner[RequestId(r)]) for r in order_of_use)
        self._tokens = sum(tree.total_tokens for tree in trees.values())
        self.trim()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless every tree and the totals are sound. O(everything)."""
        grown = self._config.matcher != "paper"
        for tree in self._trees.values():
            check_tree(tree, prefixes=grown, distinct=grown)
        owned = sum(len(tree) for tree in self._trees.values())
        tokens = sum(tree.total_tokens for tree in self._trees.values())
        if (owned, tokens) != (len(self._key_of), self._tokens) or not all(map(len, self._trees.values())):
            raise InvariantError("forest: the totals are not those of its trees")
        if len(self._gone) > REMEMBERED_GONE:
            raise InvariantError("forest: more evicted requests are remembered than may be")
