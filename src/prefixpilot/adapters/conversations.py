"""Requests that carry context blocks, planned in the caller's process: their conversations, in memory and bounded.

What the proxy does for bodies on the wire, for adapters that see the messages: the blocks are put in front of the
newest user message, and under a conversation id earlier turns stand in the prompt again exactly as they were sent
(invariant 4b). Nothing is kept on disk; for that, and for many processes, there is the proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain as chain_of
from threading import Lock
from typing import Any
from uuid import uuid4

from prefixpilot.adapters.turns import ConversationKey, Restored, Turn, TurnStore
from prefixpilot.apis import CHAT, Api
from prefixpilot.apis.base import Prompt, chain, digest
from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import Plan, Request, RequestId
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.headings import counted_on, headings_in, new_headings, own_headings, told_apart
from prefixpilot.prompts.request import BlocksRequest, parse_request


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, ready to send.

    Attributes:
        body: without ``context_blocks``; what was not changed is the caller's own object.
        labels: under which name the prompt has each block, in the caller's order: ``Doc 3``.
        plan: of this turn's blocks; ``None`` if it brings none, or is sent again as it was.
        restored: earlier turns whose blocks stand in the prompt again.
        unmatched: earlier user messages behind these in a conversation that is known: what was sent with them, if
            anything was, is not in this prompt.
        key, turn: what :meth:`Conversations.sent` remembers; ``None`` if nothing was planned.
    """

    body: Mapping[str, Any]
    labels: tuple[str, ...] = ()
    plan: Plan | None = None
    restored: int = 0
    unmatched: int = 0
    key: ConversationKey | None = field(default=None, repr=False)
    turn: Turn | None = field(default=None, repr=False)


class Conversations:
    """Plans requests that carry context blocks, and remembers in which form their turns were sent.

    ``prepare`` changes nothing that later requests see; ``sent`` does, once the engine has taken the request. Safe to
    share between threads.

    Args:
        pilot: may be shared with other adapters; a new one if ``None``.
        max_conversations: remembered; the least recently used goes first, as a whole.
        max_bytes: that they may take; a conversation larger than that alone is forgotten too.
    """

    def __init__(
        self, pilot: ContextPilot | None = None, *, max_conversations: int = 10_000, max_bytes: int = 256 * 1024 * 1024
    ) -> None:
        for name, value in (("max_conversations", max_conversations), ("max_bytes", max_bytes)):
            if type(value) is not int or value < 1:
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
        self.pilot = ContextPilot() if pilot is None else pilot
        self._store = TurnStore(max_conversations, max_bytes)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._store)

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate."""
        return self._store.size

    def prepare(
        self, body: Mapping[str, Any], api: Api = CHAT, conversation_id: str | None = None, *, owner: str = ""
    ) -> Prepared:
        """The body to send. O(bytes of the messages and blocks).

        A body without ``context_blocks`` and without a conversation is returned as it is.

        Args:
            body: JSON values only, with ``context_blocks`` or without.
            conversation_id: the conversation that this request goes on; ``None`` stands alone.
            owner: whose conversation; one id of two owners is two conversations.

        Raises:
            InvalidRequestError: blocks that cannot be used, without a user message to go in front of, or new ones in a
                tool loop, whose user message the engine has had.
        """
        if conversation_id is not None and (not isinstance(conversation_id, str) or not conversation_id):
            raise InvalidRequestError("conversation_id", f"is {conversation_id!r}", "give a non-empty str, or None")
        asked = parse_request(body, api, history=conversation_id is not None)
        if asked is None:
            return Prepared(body)
        key = None if conversation_id is None or asked.prompt.unseen else ConversationKey(owner, conversation_id)
        chains = _chains(asked.prompt)
        with self._lock:
            restored = self._store.restore(key, asked, chains) if key else Restored()
            again = self._store.retried(key, asked, chains, restored) if key else None
        return self._prepared(asked, chains, key, restored, again)

    def _prepared(
        self,
        asked: BlocksRequest,
        chains: Mapping[int, bytes],
        key: ConversationKey | None,
        restored: Restored,
        again: Turn | None,
    ) -> Prepared:
        texts, newest, plan = restored.texts, asked.newest_user, None
        turn = restored.turns.get(newest, again)
        if turn is None:
            turn, plan = self._new_turn(asked, chains.get(newest, b""), restored)
        if turn.text and newest >= 0:
            texts[newest] = turn.text
        labels = asked.labels_in({**restored.labels, **turn.labels})
        sent = asked.render_all(texts)
        return Prepared(sent, labels, plan, len(restored.turns), restored.unmatched, key, turn)

    def _new_turn(self, asked: BlocksRequest, link: bytes, restored: Restored) -> tuple[Turn, Plan | None]:
        parent = restored.deepest
        record = NEW_CONVERSATION if parent is None else parent.record
        if not asked.blocks:
            return Turn(link, parent, asked.given, "", {}, record), None
        templates = self.pilot.config.templates
        record = counted_on(record, len(asked.blocks), own_headings(asked, templates), templates)
        headings = chain_of(headings_in(restored.texts.values(), templates), new_headings(asked, templates))
        request = Request(asked.blocks, _request_id(), scope=asked.scope(), constraints=asked.constraints)
        plan = self.pilot.propose(request, told_apart(record, headings))
        labels = dict(zip(asked.block_keys, plan.labels, strict=True))
        return Turn(link, parent, asked.given, render_blocks(plan), labels, record.after(plan)), plan

    def sent(self, prepared: Prepared, reply: str | None = None) -> None:
        """The engine has taken the request: its order is learnt, and its turn remembered.

        Args:
            reply: the text that it answered, if the caller has it.
        """
        if prepared.plan is not None:
            self.pilot.learn(prepared.plan)
        if prepared.key is not None and prepared.turn is not None:
            with self._lock:
                self._store.record(prepared.key, prepared.turn, reply)

    def answered(self, prepared: Prepared, reply: str) -> None:
        """The reply to a request that :meth:`sent` was told of without one. Forgotten turns stay forgotten."""
        if prepared.key is not None and prepared.turn is not None:
            with self._lock:
                self._store.answer(prepared.key, prepared.turn, reply)

    def forget(self, conversation_id: str, *, owner: str = "") -> bool:
        """Delete a conversation; whether it was known."""
        with self._lock:
            return self._store.forget(ConversationKey(owner, conversation_id))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a structure is broken. For tests: O(everything)."""
        self._store.check_invariants()


def _request_id() -> RequestId:
    return RequestId(f"prefixpilot-{uuid4().hex}")


def _chains(prompt: Prompt) -> dict[int, bytes]:
    """The chain of each user message, by its index: over user and tool messages as the caller has them, not over the
    replies, which callers trim. O(bytes)."""
    chains: dict[int, bytes] = {}
    link = b""
    for i, message in enumerate(prompt.messages):
        if message.role in ("user", "tool"):
            link = chain(link, digest(message.value))
            if message.role == "user":
                chains[i] = link
    return chains
