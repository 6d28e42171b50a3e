"""The two trace formats. Blocks are shared: equal ids are one object.

``ids`` file: a first line ``{"trace": name, "tokens": [tokens of block 0, of block 1, ...]}``, then one request a line.
Text folder: ``requests.jsonl`` and ``blocks.jsonl`` with ``{"block_id", "text", "tokens"}`` a line (``.gz`` too).
Requests are ``{"request_id", "session_id", "turn", "blocks": [ids, most relevant first]}`` in arrival order; a session
defaults to the request, a turn to 0. What may be missing: ``query``, a text; ``answer``, a text, true or false for yes
and no, or a list of these, where an empty text is none; ``evidence``, ids of the blocks that hold the answer, found or
not. Keys not named here are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import BlockId, ContextBlock, Request, RequestId
from prefixpilot.errors import TraceError
from prefixpilot.workloads.base import Workload, WorkloadRequest
from prefixpilot.workloads.records import Record, is_block_id, is_count, read_records, shown

FindBlock: TypeAlias = Callable[[BlockId], ContextBlock | None]

REQUESTS: Final = "requests.jsonl"
BLOCKS: Final = "blocks.jsonl"


class Written:
    """A workload as lines of both formats. Its blocks have ids; equal ids are one block.

    Attributes:
        numbers: of the blocks in an ``ids`` file, by id, as they come.
        tokens: their lengths, given or estimated.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._blocks = {block.id: block for entry in workload.requests for block in entry.request.blocks}
        self.numbers = {block_id: number for number, block_id in enumerate(self._blocks)}
        self.tokens = [_tokens_of(block) for block in self._blocks.values()]

    def ids(self) -> Iterator[dict[str, Any]]:
        """The lines of an ``ids`` file."""
        yield {"trace": self._workload.name, "tokens": self.tokens}
        for entry in self._workload.requests:
            yield self._request(entry, [self.numbers[block.id] for block in entry.request.blocks])

    def requests(self) -> Iterator[dict[str, Any]]:
        """The lines of ``requests.jsonl``."""
        for entry in self._workload.requests:
            told = {"query": entry.query, "answer": list(entry.answers), "evidence": list(entry.evidence)}
            yield {**self._request(entry, [block.id for block in entry.request.blocks]), **told}

    def blocks(self) -> Iterator[dict[str, Any]]:
        """The lines of ``blocks.jsonl``; a title stands in front of its text."""
        for (block_id, block), tokens in zip(self._blocks.items(), self.tokens, strict=True):
            yield {"block_id": block_id, "text": _text_of(block), "tokens": tokens}

    def _request(self, entry: WorkloadRequest, blocks: list[Any]) -> dict[str, Any]:
        named = {"request_id": entry.request.request_id, "session_id": entry.session_id, "turn": entry.turn}
        return {**named, "blocks": blocks}


def _text_of(block: ContextBlock) -> str:
    return f"{block.title}\n{block.text}" if block.title else block.text or ""


def _tokens_of(block: ContextBlock) -> int:
    return estimate_tokens(_text_of(block)) if block.tokens is None else block.tokens


def is_ids_header(record: Record) -> bool:
    """Whether a first line says that the file is an ``ids`` trace."""
    return "tokens" in record.values and "request_id" not in record.values


def parse_ids(header: Record, records: Iterable[Record]) -> Workload:
    """A workload from the lines of an ``ids`` file.

    Raises:
        TraceError: a line cannot be used, or there is no request.
    """
    tokens = header.list("tokens")
    for block, length in enumerate(tokens):
        if not is_count(length):
            raise header.error(f"tokens[{block}]", f"is {shown(length)}", "give an int from 0 to 2**40")
    blocks = [ContextBlock(id=block, tokens=length) for block, length in enumerate(tokens)]

    def find(block: BlockId) -> ContextBlock | None:
        return blocks[block] if isinstance(block, int) and 0 <= block < len(blocks) else None

    known = f"use the ids 0 to {len(blocks) - 1}, or add its length to tokens in the first line"
    requests = _requests(records, find, known)
    if not requests:
        raise TraceError(header.where, "no request follows it", "give a trace with at least one request")
    return Workload(header.text("trace", "trace"), requests)


def read_folder(folder: Path) -> Workload:
    """A workload from a text folder.

    Raises:
        TraceError: a file is missing, a line cannot be used, or there is no request.
    """
    path = _inside(folder, REQUESTS)
    blocks = _text_blocks(_inside(folder, BLOCKS))
    requests = _requests(read_records(path), blocks.get, f"use a block_id of {BLOCKS}, or add the block there")
    if not requests:
        raise TraceError(str(path), "holds no request", "give a trace with at least one request")
    return Workload(folder.resolve().name, requests)


def _inside(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise TraceError(str(folder / name), "is missing", f"a trace folder holds {REQUESTS} and {BLOCKS}")


def _text_blocks(path: Path) -> dict[BlockId, ContextBlock]:
    blocks: dict[BlockId, ContextBlock] = {}
    for record in read_records(path):
        block_id = record.block_id("block_id")
        if block_id in blocks:
            raise record.error("block_id", f"{shown(block_id)} stands twice in the file", "give each block its own id")
        text = record.values.get("text")
        if not isinstance(text, str):
            reason = f"is {shown(text)}" if "text" in record.values else "is missing"
            raise record.error("text", reason, "give the block's text as a string")
        tokens = record.count("tokens") if record.values.get("tokens") is not None else None
        blocks[block_id] = ContextBlock(text=text, id=block_id, tokens=tokens)
    return blocks


def _requests(records: Iterable[Record], find: FindBlock, remedy: str) -> tuple[WorkloadRequest, ...]:
    seen: set[str] = set()
    requests = []
    for record in records:
        request_id = record.text("request_id")
        if request_id in seen:
            raise record.error("request_id", f"{shown(request_id)} stands twice in the file", "make ids unique")
        seen.add(request_id)
        request = Request(_blocks(record, find, remedy), RequestId(request_id))
        session = record.text("session_id", request_id)
        asked = None if record.values.get("query") is None else record.text("query")
        turn, answers, evidence = record.count("turn", 0), _answers(record), _evidence(record)
        entry = WorkloadRequest(request, session, turn, record.where, query=asked, answers=answers, evidence=evidence)
        requests.append(entry)
    return tuple(requests)


def _answers(record: Record) -> tuple[str, ...]:
    value = record.values.get("answer")
    answers = []
    for answer in value if isinstance(value, list) else [value]:
        if answer is not None and not isinstance(answer, str | bool):
            raise record.error("answer", f"is {shown(value)}", "give a text, true, false, or a list of them")
        answers.append(("yes" if answer else "no") if isinstance(answer, bool) else answer)
    return tuple(answer for answer in answers if answer)


def _evidence(record: Record) -> tuple[BlockId, ...]:
    named = [] if record.values.get("evidence") is None else record.list("evidence")
    for position, block_id in enumerate(named):
        if not is_block_id(block_id):
            raise record.error(f"evidence[{position}]", f"is {shown(block_id)}", "give the id of a block")
    return tuple(named)


def _blocks(record: Record, find: FindBlock, remedy: str) -> tuple[ContextBlock, ...]:
    blocks = []
    for position, block_id in enumerate(record.list("blocks")):
        if not is_block_id(block_id):
            raise record.error(f"blocks[{position}]", f"is {shown(block_id)}", "give the id of a block")
        block = find(block_id)
        if block is None:
            raise record.error(f"blocks[{position}]", f"{shown(block_id)} is not a known block", remedy)
        blocks.append(block)
    return tuple(blocks)
