"""A workload made ready to send: every block with a text, every request with a question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import BlockId, ContextBlock
from prefixpilot.errors import ConfigError
from prefixpilot.workloads import Workload

_WORDS: Final = tuple(
    word
    for line in (
        "the old mill and its barn by the sea hold oak salt iron wool ham bread fish corn wine and rope while men cut",
        "hay for sale two boys row out to set nets at dawn her dog ran past our gate red kite gold ring book map coin",
        "song king fire rain snow wind ice sun moon star hill lake road ship sail cart farm bell key lamp tree leaf",
    )
    for word in line.split()
)
"""In most vocabularies one token each, and some four bytes with the space, as ordinary text has."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request.

    Attributes:
        number: in arrival order, from 0.
        session: turns of one session are sent in order, each with what was said before.
        blocks: most relevant first; each has a text.
    """

    number: int
    session: str
    turn: int
    question: str
    blocks: tuple[ContextBlock, ...]


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a workload is made ready.

    Attributes:
        limit: only the first so many requests; ``None``: all.
        k: only the first so many blocks of a request; ``None``: all.
        prompt_tokens: block lengths of a workload without texts are scaled so that a request has so many on average;
            ``None`` leaves them. Texts are never cut.
        multi_turn: sessions are conversations; else every request stands alone.
    """

    limit: int | None = None
    k: int | None = None
    prompt_tokens: int | None = None
    multi_turn: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "k", "prompt_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more, or leave it out")


def prepare(workload: Workload, how: Preparation) -> tuple[BenchRequest, ...]:
    """The requests to send. Blocks without a text get one of their length, the same for the same id. O(tokens).

    Raises:
        ConfigError: ``multi_turn`` and a workload whose turns are not in order (as a TraceError).
    """
    if how.multi_turn:
        workload = workload.as_conversations()
    entries = tuple(islice(workload.requests, how.limit))
    lengths = [sum(block.tokens or 0 for block in entry.request.blocks[: how.k]) for entry in entries]
    mean = sum(lengths) / max(1, len(lengths))
    scale = 1.0 if how.prompt_tokens is None or not mean else how.prompt_tokens / mean
    made: dict[BlockId, ContextBlock] = {}
    requests = []
    for number, entry in enumerate(entries):
        blocks = tuple(_with_text(block, scale, made) for block in entry.request.blocks[: how.k])
        session = entry.session_id if how.multi_turn else f"request-{number}"
        question = entry.query or f"Question {entry.request.request_id}: what follows from this?"
        requests.append(BenchRequest(number, session, entry.turn, question, blocks))
    return tuple(requests)


def digest_of(requests: Sequence[BenchRequest]) -> str:
    """16 bytes over all that is sent, as hexadecimal digits: another trace of the same name is another one."""
    digest = hashlib.blake2b(digest_size=16)
    for request in requests:
        for part in (request.session, request.question, *(block.text or "" for block in request.blocks)):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _with_text(block: ContextBlock, scale: float, made: dict[BlockId, ContextBlock]) -> ContextBlock:
    if block.text is not None or block.id is None:
        return replace(block, tokens=None)
    if block.id not in made:
        made[block.id] = ContextBlock(text=filler(block.id, max(1, round((block.tokens or 1) * scale))), id=block.id)
    return made[block.id]


def filler(block_id: BlockId, tokens: int) -> str:
    """A text of about so many tokens that begins differently for each id.

    >>> filler(7, 6)
    'Record 7: two king ring'
    """
    head = f"Record {block_id!r}:" if isinstance(block_id, bytes) else f"Record {block_id}:"
    words = islice(_drawn(str(block_id)), max(0, tokens - estimate_tokens(head)))
    return " ".join([head, *words])


def _drawn(seed: str) -> Iterator[str]:
    counter = 0
    while True:
        for byte in hashlib.blake2b(f"{seed}/{counter}".encode(), digest_size=64).digest():
            yield _WORDS[byte % len(_WORDS)]
        counter += 1
