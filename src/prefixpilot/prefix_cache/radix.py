"""A radix tree over prompts with a token budget, as SGLang's RadixCache, exact to the token.

A node holds a run of segments: the compressed edge from its parent. All tokens of a node were inserted by the same
access and have been accessed together ever since, so one :class:`Usage` describes them; a prompt that ends inside a
node splits it. Eviction cuts the tails of leaves and may end inside a segment; what continues such a cut later is the
one child of the cut node.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from prefixpilot.errors import InvariantError
from prefixpilot.prefix_cache.base import Access, Segment, check_capacity, nonempty_segments
from prefixpilot.prefix_cache.eviction import LRU, EvictionPolicy, Usage


class _Node:
    """A run of held tokens.

    Attributes:
        segments: those the run touches; empty at the root only.
        head: tokens of the first segment that the ancestors hold.
        cut: tokens of the last segment that this run does not hold.
        tokens: length of the run.
        children: what follows, by first segment. After a cut only the same segment can follow.
        queued: whether the eviction queue holds an entry for it.
    """

    __slots__ = ("children", "cut", "head", "hits", "inserted", "last_access", "parent", "queued", "segments", "tokens")

    def __init__(self, parent: _Node | None, segments: list[Segment], head: int, cut: int, now: int) -> None:
        self.parent = parent
        self.segments = segments
        self.head = head
        self.cut = cut
        self.tokens = sum(s.tokens for s in segments) - head - cut
        self.children: dict[Segment, _Node] = {}
        self.inserted = now
        self.last_access = now
        self.hits = 1
        self.queued = False

    @property
    def usage(self) -> Usage:
        return Usage(self.inserted, self.last_access, self.hits)

    def split(self, keep: int) -> _Node:
        """Move the first ``keep`` segments to a new parent, and return that. This object stays the lower part."""
        upper = _Node(self.parent, self.segments[:keep], self.head, 0, self.inserted)
        upper.last_access, upper.hits = self.last_access, self.hits
        upper.children[self.segments[keep]] = self
        if self.parent is not None:
            self.parent.children[self.segments[0]] = upper
        self.parent, self.segments, self.head = upper, self.segments[keep:], 0
        self.tokens -= upper.tokens
        return upper

    def cut_tail(self, tokens: int) -> None:
        """Give up the last ``tokens`` tokens, fewer than the run has."""
        self.tokens -= tokens
        self.cut += tokens
        while self.cut >= self.segments[-1].tokens:
            self.cut -= self.segments.pop().tokens


class _Match(NamedTuple):
    """Where a prompt leaves the tree.

    Attributes:
        path: the nodes that it covers whole, root first.
        partial: the child of the last of them of which it covers only a head, or ``None``.
        partial_segments: how many segments that head has.
        segment: index in the prompt of the first segment that is not held whole.
        offset: tokens of that segment that are held.
        tokens: held tokens of the prompt.
    """

    path: list[_Node]
    partial: _Node | None
    partial_segments: int
    segment: int
    offset: int
    tokens: int


class RadixPrefixCache:
    """See :class:`~prefixpilot.prefix_cache.base.PrefixCache`, which this is.

    ``match_prefix`` is O(segments matched). ``access`` is that plus O(log leaves) for each node evicted; an access adds
    at most two nodes. With LRU an access evicts exactly the tokens whose last access is oldest, deepest first.

    Args:
        capacity_tokens: the bound in tokens; ``None`` for none.
        policy: which leaf goes first.

    Raises:
        ConfigError: ``capacity_tokens`` below 1.
    """

    def __init__(self, capacity_tokens: int | None, policy: EvictionPolicy = LRU) -> None:
        self._capacity = check_capacity(capacity_tokens)
        self._policy = policy
        self.clear()

    @property
    def capacity_tokens(self) -> int | None:
        """The bound in tokens; ``None`` for none."""
        return self._capacity

    @property
    def used_tokens(self) -> int:
        """Tokens held now."""
        return self._used

    def clear(self) -> None:
        """Hold nothing."""
        self._root = _Node(None, [], 0, 0, 0)
        self._used = 0
        self._now = 0
        self._queue: list[tuple[tuple[int, int], int, _Node]] = []
        self._ticket = count()

    def match_prefix(self, prompt: Sequence[Segment]) -> int:
        """Tokens of the longest held prefix of ``prompt``. Changes nothing."""
        return self._match(nonempty_segments(prompt)).tokens

    def access(self, prompt: Sequence[Segment]) -> Access:
        """Match ``prompt``, then insert the rest, evicting what must go."""
        segments = nonempty_segments(prompt)
        match = self._match(segments)
        self._now += 1
        self._touch(match)
        total = sum(s.tokens for s in segments)
        missing = total - match.tokens
        evicted = self._make_room(missing)
        fits = missing if self._capacity is None else min(missing, self._capacity - self._used)
        if fits:
            self._insert(match.path[-1], segments[match.segment :], match.offset, fits)
        return Access(match.tokens, total, evicted)

    def truncate(self, prompt: Sequence[Segment], tokens: int) -> int:
        """Hold no more of ``prompt`` than its first ``tokens`` tokens: evict what lies behind, also of other prompts.

        Returns how many tokens went. For models that are corrected by what an engine reports. O(nodes held).
        """
        node, start = self._node_at(nonempty_segments(prompt), max(tokens, 0))
        if node is None:
            return 0
        before, keep, gone = self._used, max(tokens, 0) - start, set()
        if keep:
            below = list(node.children.values())
            node.children = {}
        else:
            below = [node]
        for each in below:
            gone.add(id(each))
            self._used -= each.tokens
            below.extend(each.children.values())
        if keep:
            self._used -= node.tokens - keep
            node.cut_tail(node.tokens - keep)
        else:
            above = node.parent
            assert above is not None
            del above.children[node.segments[0]]
            node = above
        self._queue = [entry for entry in self._queue if id(entry[2]) not in gone]
        heapq.heapify(self._queue)
        if not node.children and node is not self._root:
            self._enqueue(node)
        return before - self._used

    def newer_tokens(self, prompt: Sequence[Segment], tokens: int) -> int:
        """How many held tokens LRU would keep longer than the held token of ``prompt`` that follows ``tokens`` others.

        A cache of so many tokens is the largest one that would not hold that token. All of them if it is not held.
        O(nodes held).
        """
        node, start = self._node_at(nonempty_segments(prompt), tokens)
        if node is None:
            return self._used
        newer = sum(n.tokens for n in _descendants(self._root) if n.last_access > node.last_access)
        above = node.parent
        while above is not None and above.last_access == node.last_access:
            newer += above.tokens
            above = above.parent
        return newer + tokens - start

    def resize(self, capacity_tokens: int | None) -> None:
        """Another bound; what no longer fits is evicted, whatever was accessed last. O(nodes held).

        Raises:
            ConfigError: below 1.
        """
        self._capacity = check_capacity(capacity_tokens)
        self._now += 1
        for node in _descendants(self._root):
            if not node.children:
                self._enqueue(node)
        self._make_room(0)

    def _node_at(self, segments: list[Segment], tokens: int) -> tuple[_Node | None, int]:
        """The node that holds the prompt's token after ``tokens`` others, and how many tokens lie above that node."""
        match = self._match(segments)
        if match.tokens <= tokens:
            return None, 0
        nodes = match.path[1:] if match.partial is None else [*match.path[1:], match.partial]
        start = 0
        for node in nodes:
            if start + node.tokens > tokens:
                return node, start
            start += node.tokens
        raise InvariantError("radix cache: a match is longer than its path")

    def _match(self, segments: list[Segment]) -> _Match:
        node, path, index, offset, tokens = self._root, [self._root], 0, 0, 0
        while index < len(segments):
            child = node.children.get(segments[index])
            if child is None:
                break
            common = _common_length(child.segments, segments, index)
            if common < len(child.segments):
                tokens += sum(s.tokens for s in child.segments[:common]) - child.head
                return _Match(path, child, common, index + common, 0, tokens)
            node = child
            path.append(node)
            tokens += node.tokens
            index += common - (1 if node.cut else 0)
            offset = node.segments[-1].tokens - node.cut if node.cut else 0
        return _Match(path, None, 0, index, offset, tokens)

    def _touch(self, match: _Match) -> None:
        """Count this access on everything it hit, splitting where it leaves the tree; the path then ends there."""
        if match.partial is not None:
            match.path.append(match.partial.split(match.partial_segments))
        for node in match.path:
            node.last_access = self._now
            node.hits += 1

    def _insert(self, parent: _Node, segments: list[Segment], head: int, tokens: int) -> None:
        """Hang the first ``tokens`` tokens that follow the first ``head`` of ``segments`` below ``parent``."""
        end, length = 0, -head
        while length < tokens:
            length += segments[end].tokens
            end += 1
        node = _Node(parent, segments[:end], head, length - tokens, self._now)
        parent.children[segments[0]] = node
        self._used += tokens
        self._enqueue(node)

    def _make_room(self, tokens: int) -> int:
        """Evict until ``tokens`` fit or nothing is left but what the present access hit. Returns what went."""
        if self._capacity is None:
            return 0
        before, held = self._used, []
        while self._used + tokens > self._capacity and self._queue:
            node = self._pop()
            if node is None:
                continue
            if node.last_access == self._now:
                held.append(node)
            else:
                self._evict(node, self._used + tokens - self._capacity)
        for node in held:
            self._enqueue(node)
        return before - self._used

    def _pop(self) -> _Node | None:
        """Take the first entry; its node, or ``None`` if the entry no longer said how things are."""
        priority, _, node = heapq.heappop(self._queue)
        node.queued = False
        if node.children:
            return None
        if priority != self._policy.priority(node.usage):
            self._enqueue(node)
            return None
        return node

    def _evict(self, leaf: _Node, tokens: int) -> None:
        """Evict at most ``tokens`` tokens from the tail of ``leaf``."""
        if tokens < leaf.tokens:
            leaf.cut_tail(tokens)
            self._used -= tokens
            self._enqueue(leaf)
            return
        self._used -= leaf.tokens
        parent = leaf.parent
        if parent is None:
            raise InvariantError("the root was queued for eviction")
        del parent.children[leaf.segments[0]]
        if not parent.children and parent is not self._root:
            self._enqueue(parent)

    def _enqueue(self, node: _Node) -> None:
        if not node.queued and self._capacity is not None:
            node.queued = True
            heapq.heappush(self._queue, (self._policy.priority(node.usage), next(self._ticket), node))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the tree, the budget or the queue is broken. O(tree)."""
        nodes = list(_descendants(self._root))
        _require(self._used == sum(n.tokens for n in nodes), "the count of held tokens is wrong")
        _require(self._capacity is None or self._used <= self._capacity, "more is held than the capacity")
        queued = [id(node) for _, _, node in self._queue]
        _require(len(queued) == len(set(queued)), "a node is queued twice")
        _require(set(queued) <= {id(n) for n in nodes}, "an evicted node is queued")
        for node in nodes:
            _check_node(node)
            _require(node.queued == (id(node) in set(queued)), "a node's queue mark is wrong")
            _require(bool(node.children) or node.queued or self._capacity is None, "a leaf is not queued")


def _common_length(edge: list[Segment], prompt: list[Segment], start: int) -> int:
    """How many leading segments of ``edge`` equal ``prompt[start:]``."""
    if edge == prompt[start : start + len(edge)]:
        return len(edge)
    length = 0
    for mine, theirs in zip(edge, prompt[start : start + len(edge)], strict=False):
        if mine != theirs:
            break
        length += 1
    return length


def _descendants(root: _Node) -> Iterator[_Node]:
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def _check_node(node: _Node) -> None:
    _require(node.tokens == sum(s.tokens for s in node.segments) - node.head - node.cut, "a length is wrong")
    _require(node.tokens > 0, "a node holds nothing")
    _require(0 <= node.cut < node.segments[-1].tokens, "a cut does not end in the last segment")
    held = node.segments[-1].tokens - node.cut if node.cut else 0
    _require(not held or set(node.children) <= {node.segments[-1]}, "something else follows a cut segment")
    for first, child in node.children.items():
        _require(child.parent is node and child.segments[0] == first and child.head == held, "a child hangs wrong")
        _require(child.last_access <= node.last_access and child.hits <= node.hits, "a child is used more")
        _require(child.inserted >= node.inserted, "a child is older than its parent")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"radix cache: {what}")
