"""Turns as a proxy would record them, made of planned blocks; and conversations that clients may have."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from prefixpilot import ContextPilot, Request
from prefixpilot.blocks import text_digest
from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import ContextBlock, RequestId
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.memory.history import Chain, History
from prefixpilot.proxy.memory.records import LedgerKey, Turn, without_texts
from prefixpilot.proxy.memory.reply import Reply, Said
from prefixpilot.proxy.memory.window import spans_of

PILOT = ContextPilot()


def digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def key(name: str, mode: Any = "on") -> LedgerKey:
    return LedgerKey("default", "credential", name, mode)


def chain_of(questions: Sequence[str]) -> Chain:
    link = b""
    for question in questions:
        link = digest(link, question)
    return link


def history(questions: Sequence[str], replies: Sequence[str] = ()) -> History:
    """Of a request whose user messages are these; the last is new, the others have been answered."""
    indexes = range(0, 2 * len(questions), 2)
    chains = {i: chain_of(questions[: n + 1]) for n, i in enumerate(indexes)}
    messages = {i: digest(question) for i, question in zip(indexes, questions, strict=True)}
    said = {i: Said(text) for i, text in zip(indexes, replies, strict=False)}
    return History(chains, messages, said, indexes[-1])


def turn(questions: Sequence[str], parent: Turn | None, texts: Sequence[str], request_id: str = "r") -> Turn:
    """The turn of the last question, whose documents are planned against its past."""
    record = NEW_CONVERSATION if parent is None else parent.record
    chain, message = chain_of(questions), digest(questions[-1])
    if not texts:
        return Turn(chain, message, parent, "", digest(), {}, record)
    request = Request(tuple(map(ContextBlock, texts)), RequestId(request_id))
    plan = PILOT.propose(request, record)
    text = render_blocks(plan)
    labels = {digest(text): label for text, label in zip(texts, plan.labels, strict=True)}
    made = Turn(chain, message, parent, text, digest(*texts), labels, record.after(plan), without_texts(plan))
    made.spans = spans_of(plan, text)
    made.names = tuple(text_digest(planned.block) for planned in plan.blocks)
    return made


def converse(turns: Sequence[Sequence[str]]) -> list[Turn]:
    """One branch: the documents of each of its turns."""
    path: list[Turn] = []
    for n, texts in enumerate(turns):
        path.append(turn([f"Question {i}?" for i in range(n + 1)], path[-1] if path else None, texts))
    return path


def said(text: str) -> Reply:
    return Reply(text)


def facts(turn: Turn) -> Any:
    """All that is to be kept of a turn, as values that compare."""
    replies = [reply.dump() for reply in turn.replies]
    fixed = (turn.identity, turn.chain, turn.message, turn.text, turn.given, dict(turn.labels), turn.spans)
    return (*fixed, turn.record, turn.plan, turn.dropped, turn.stem, turn.forgot_replies, replies)
