"""Everything that stands in a prompt before a region: what must be equal for KV reuse, as one digest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from prefixpilot.apis.base import Message, Segment
from prefixpilot.pieces import Form, Slot, fill
from prefixpilot.prompts.request import SCOPE_FIELDS
from prefixpilot.proxy.ordinary.chain import canonical


class Before:
    """A digest that grows along a prompt, message by message, as it is forwarded."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        fields = {name: body[name] for name in SCOPE_FIELDS if name in body}
        self._hash = blake2b(canonical(fields).encode(), digest_size=16)

    @property
    def digest(self) -> str:
        """Of all that was added."""
        return self._hash.hexdigest()

    def add(self, message: Message, digest: bytes, forms: Sequence[Form]) -> None:
        """A whole message: the client's, and the forms in which its strings are sent."""
        self._hash.update(message.role.encode() + digest + _written(forms))

    def scope(self, message: Message, segment: Segment, forms: Sequence[Form], slots: Iterable[Slot], end: int) -> str:
        """What stands before character ``end`` of a string, behind all messages that were added.

        Args:
            forms: of the earlier strings of the message.
            slots: that are filled before ``end``.
        """
        here = self._hash.copy()
        here.update(message.role.encode() + _parts_before(message, segment) + _written(forms))
        here.update(segment.text[:end].encode("utf-8", "surrogatepass"))
        here.update(_written([fill(len(segment.text), slots)]))
        return here.hexdigest()


def _written(forms: Sequence[Form]) -> bytes:
    return repr([tuple(piece if isinstance(piece, str) else tuple(piece) for piece in form) for form in forms]).encode()


def _parts_before(message: Message, segment: Segment) -> bytes:
    """The parts of a message that stand before a string of it: images and files too."""
    before = []
    value = message.value
    for step in segment.pointer[len(message.pointer) :]:
        if isinstance(step, int):
            before.append(canonical(value[:step]))
        value = value[step]
    return "\n".join(before).encode()
