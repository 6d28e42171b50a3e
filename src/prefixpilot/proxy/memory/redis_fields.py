"""A conversation as the fields of a hash in Redis, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from prefixpilot.proxy.escaping import dumped
from prefixpilot.proxy.memory.codec import KeptTurn, Piece, read
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.records import Turn
from prefixpilot.proxy.memory.store import spread_sent


def row_of(row: KeptTurn) -> bytes:
    """Texts that stand beside the turn are named in a list of their own."""
    pieces = [[piece.name.hex()] if piece.shared else piece.text for piece in row.pieces]
    return data_of(dumped([None if row.parent is None else row.parent.hex(), row.data, pieces]))


def turns_of(fields: Mapping[bytes, bytes]) -> list[Turn]:
    """Of the fields of a conversation. Raises StoreError: it cannot be read."""
    turns: dict[bytes, Turn] = {}
    order = sorted((int(number), name[2:]) for name, number in fields.items() if name.startswith(b"o:"))
    try:
        for _, identity in order:
            parent, data, _ = json.loads(fields[b"t:" + identity])
            above = None if parent is None else turns[bytes.fromhex(parent)]
            replies, sent = fields[b"r:" + identity].decode(), int(fields[b"s:" + identity])
            name = None if above is None else above.identity
            row = KeptTurn(identity, name, data, replies, sent, tuple(pieces_of(fields, identity)))
            turns[identity] = read(row, above)
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(f"a kept conversation cannot be read ({type(error).__name__}: {error})") from error
    spread_sent(turns.values())
    return list(turns.values())


def pieces_of(fields: Mapping[bytes, bytes], identity: bytes) -> Iterator[Piece]:
    """Of one turn, in order; texts that several turns share are looked up."""
    for piece in json.loads(fields[b"t:" + identity])[2]:
        if isinstance(piece, str):
            yield Piece(piece)
        else:
            name = bytes.fromhex(piece[0])
            yield Piece(fields[b"x:" + name].decode("utf-8", "surrogatepass"), name)


def data_of(text: str) -> bytes:
    """As it is kept; lone surrogates pass."""
    return text.encode("utf-8", "surrogatepass")
