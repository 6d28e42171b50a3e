"""Which requests' prompts took which pages, and how many of their context blocks still lie in what is held."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from prefixpilot.cache_events import PageHash
from prefixpilot.core import RequestId
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.residency.base import require


class Shortened(NamedTuple):
    """Of the context of this request only the first ``blocks`` blocks are still held whole; 0: none, it is gone."""

    request_id: RequestId
    blocks: int


class _Node:
    """A page that some attached context needs; the path from the root is its prefix.

    Attributes:
        depth: pages up to and with this one.
        children: by name; ``None`` for none.
        contexts: those whose last usable block ends in this page.
    """

    __slots__ = ("children", "contexts", "depth", "name", "parent")

    def __init__(self, name: PageHash, parent: _Node | None) -> None:
        self.name = name
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[PageHash, _Node] | None = None
        self.contexts: dict[RequestId, None] | None = None


class _Context:
    """Where a request stands: ``blocks`` are usable, of all that end at ``ends``; the last of them ends in ``node``."""

    __slots__ = ("blocks", "ends", "node")

    def __init__(self, node: _Node, ends: tuple[int, ...], blocks: int) -> None:
        self.node = node
        self.ends = ends
        self.blocks = blocks


class ResidentContexts:
    """The contexts of requests over the pages that their prompts took, as a tree: prompts with one head share it.

    A context hangs on the page in which its last usable block ends, so that only what changes is touched. Memory is
    O(distinct pages + blocks of the contexts). Not thread-safe: one owner.

    Attributes:
        page_size: tokens in a page.

    Args:
        max_contexts: the one attached longest ago is let go beyond that; of a context let go nothing is said any more.

    Raises:
        ConfigError: below 1.
    """

    def __init__(self, page_size: int, max_contexts: int = 100_000) -> None:
        for name, value in (("page_size", page_size), ("max_contexts", max_contexts)):
            if type(value) is not int or value < 1:
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        self.page_size = page_size
        self._max_contexts = max_contexts
        self._contexts: OrderedDict[RequestId, _Context] = OrderedDict()
        self._gone: OrderedDict[RequestId, None] = OrderedDict()
        self._empty()

    def __len__(self) -> int:
        """Attached contexts."""
        return len(self._contexts)

    @property
    def pages(self) -> int:
        """Distinct pages that they need."""
        return len(self._nodes)

    def usable(self, request_id: RequestId) -> int:
        """How many leading blocks of a request's context are held whole; 0 if it is not attached."""
        context = self._contexts.get(request_id)
        return 0 if context is None else context.blocks

    def knows(self, request_id: RequestId) -> bool:
        """Whether a request is attached, or was lately: as many are remembered as may be attached. O(1)."""
        return request_id in self._contexts or request_id in self._gone

    def attach(self, request_id: RequestId, pages: Sequence[PageHash], block_ends: Sequence[int]) -> int:
        """A request's prompt lies in these pages. Returns how many of its blocks do; with 0 it is not attached.

        A request attached before is attached anew. O(pages).

        Args:
            pages: the chain that is held, from the start of the prompt.
            block_ends: where each of its context blocks ends, in tokens from the start of the prompt; not falling.

        Raises:
            InvalidRequestError: ``block_ends`` falls, or begins below 1. Nothing has changed then.
        """
        ends = tuple(block_ends)
        if ends and (ends[0] < 1 or any(a > b for a, b in pairwise(ends))):
            raise InvalidRequestError("block_ends", f"is {ends}", "give rising positions, in tokens")
        self.detach(request_id)
        blocks = bisect_right(ends, len(pages) * self.page_size)
        if not blocks:
            self._remember_gone(request_id)
            return 0
        node = self._root
        for name in pages[: self._pages_of(ends[blocks - 1])]:
            below = node.children = {} if node.children is None else node.children
            child = below.get(name)
            if child is None:
                child = below[name] = self._nodes[name] = _Node(name, node)
            node = child
        self._contexts[request_id] = self._hang(request_id, _Context(node, ends, blocks))
        self._gone.pop(request_id, None)
        if len(self._contexts) > self._max_contexts:
            self.detach(next(iter(self._contexts)))
        return blocks

    def detach(self, request_id: RequestId) -> bool:
        """Let a request go; whether it was attached. O(pages of its prompt)."""
        context = self._contexts.pop(request_id, None)
        if context is None:
            return False
        node = context.node
        assert node.contexts is not None
        del node.contexts[request_id]
        node.contexts = node.contexts or None
        self._trim(node)
        self._remember_gone(request_id)
        return True

    def remove(self, pages: Iterable[PageHash]) -> tuple[Shortened, ...]:
        """These pages are no longer held. What that shortened, each request once, in a fixed order.

        Costs O(pages no longer needed + contexts shortened). A page that comes back lengthens nothing: a new request
        does.
        """
        shortened: dict[RequestId, Shortened] = {}
        for name in pages:
            node = self._nodes.get(name)
            if node is not None:
                for change in self._cut(node):
                    shortened[change.request_id] = change
        return tuple(shortened.values())

    def clear(self) -> tuple[Shortened, ...]:
        """Nothing is held any more. All requests that were attached, with 0 blocks each."""
        gone = tuple(Shortened(request_id, 0) for request_id in self._contexts)
        for request_id in self._contexts:
            self._remember_gone(request_id)
        self._contexts.clear()
        self._empty()
        return gone

    # -- inside

    def _empty(self) -> None:
        self._nodes: dict[PageHash, _Node] = {}
        self._root = _Node(PageHash(b""), None)

    def _remember_gone(self, request_id: RequestId) -> None:
        self._gone[request_id] = None
        self._gone.move_to_end(request_id)
        if len(self._gone) > self._max_contexts:
            self._gone.popitem(last=False)

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _hang(self, request_id: RequestId, context: _Context) -> _Context:
        node = context.node
        if node.contexts is None:
            node.contexts = {}
        node.contexts[request_id] = None
        return context

    def _cut(self, top: _Node) -> list[Shortened]:
        """Take out a page and what lies below; move the contexts that hung there up."""
        above = top.parent
        assert above is not None and above.children is not None
        del above.children[top.name]
        above.children = above.children or None
        tokens = above.depth * self.page_size
        shortened = []
        below = [top]
        for node in below:
            del self._nodes[node.name]
            below.extend((node.children or {}).values())
            shortened += [self._shorten(request_id, above, tokens) for request_id in node.contexts or ()]
        self._trim(above)
        return shortened

    def _shorten(self, request_id: RequestId, node: _Node, tokens: int) -> Shortened:
        """Hang a context where the last of its blocks ends that lies in ``tokens``, at ``node`` or above it."""
        context = self._contexts[request_id]
        context.blocks = bisect_right(context.ends, tokens)
        if not context.blocks:
            del self._contexts[request_id]
            self._remember_gone(request_id)
            return Shortened(request_id, 0)
        depth = self._pages_of(context.ends[context.blocks - 1])
        while node.depth > depth:
            assert node.parent is not None
            node = node.parent
        context.node = node
        self._hang(request_id, context)
        return Shortened(request_id, context.blocks)

    def _trim(self, node: _Node) -> None:
        """Forget pages that no context needs, from ``node`` upward."""
        while node.parent is not None and not node.children and not node.contexts:
            above = node.parent
            assert above.children is not None
            del above.children[node.name], self._nodes[node.name]
            above.children = above.children or None
            node = above

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the tree is broken. O(everything)."""
        require(len(self._contexts) <= self._max_contexts, "too many contexts")
        require(len(self._gone) <= self._max_contexts, "too many contexts are remembered")
        require(not self._gone.keys() & self._contexts.keys(), "a context is attached and gone")
        nodes = [self._root]
        for node in nodes:
            for name, child in (node.children or {}).items():
                require(child.parent is node and child.name == name, "a page hangs wrong")
                require(self._nodes.get(name) is child, "a page has no entry")
                require(child.depth == node.depth + 1, "a depth is wrong")
                nodes.append(child)
            needed = bool(node.children or node.contexts)
            require(needed or node is self._root, "a page that nobody needs")
            require(node.children != {} and node.contexts != {}, "an empty dictionary is kept")
        require(len(nodes) == len(self._nodes) + 1, "an entry of no page")
        hung = {request_id: node for node in nodes for request_id in node.contexts or ()}
        require(hung == {r: context.node for r, context in self._contexts.items()}, "a context hangs wrong")
        for context in self._contexts.values():
            require(0 < context.blocks <= len(context.ends), "the number of usable blocks is wrong")
            require(self._pages_of(context.ends[context.blocks - 1]) == context.node.depth, "hangs on a wrong page")
