"""Bodies that are read: those with blocks, those of a conversation, and those that a treatment may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prefixpilot.apis.base import Prompt
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import JsonText, KnownElements, NoObjectError, UnreadableError
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import BlocksRequest, check_once, check_placed
from prefixpilot.proxy.call import Call, Options, check_request_id, may_carry_blocks, unfold
from prefixpilot.proxy.steps import Parse
from prefixpilot.proxy.turns import bounded


class ReadRequest(NamedTuple):
    """A body with blocks or of a conversation, and the text that it came in."""

    asked: BlocksRequest
    source: JsonText


class ReadPrompt(NamedTuple):
    """A body of neither kind, and the text that it came in."""

    prompt: Prompt
    source: JsonText


class BodyReader:
    """Reads bodies; what cannot be read is refused only where passing it on would drop evidence in silence.

    Args:
        max_bytes: that a compressed body may unfold to.
        knows: whether the conversation of a request has recorded turns.
        known: elements of bodies that came before.
    """

    def __init__(
        self, parse: Parse, max_bytes: int, knows: Callable[[Options], bool], known: KnownElements | None = None
    ) -> None:
        self._parse = parse
        self._max_bytes = max_bytes
        self._knows = knows
        self._known = known

    def request(self, call: Call, options: Options) -> ReadRequest | None:
        """A body that has ``context_blocks`` or belongs to a conversation; ``None`` if nothing is to be placed in it.

        Raises:
            InvalidRequestError: a client's mistake.
        """
        try:
            source = self._source(call)
        except NoObjectError:
            return None
        except UnreadableError as error:
            self._refuse(call, options, error)
            return None
        check_placed(source, call.api)
        asked = self._parse(source.value, call.api, history=options.conversation is not None)
        if asked is None:
            return None
        check_request_id(options)
        limit = options.max_displacement
        return ReadRequest(asked if limit is None else bounded(asked, limit), source)

    def prompt(self, call: Call) -> ReadPrompt | None:
        """Any body; ``None`` if it cannot be read, or has no prompt as text."""
        try:
            source = self._source(call)
        except UnreadableError:
            return None
        prompt = call.api.read(source.value)
        return None if prompt is None else ReadPrompt(prompt, source)

    def unfold(self, call: Call) -> bytes:
        """The body without its compression. Raises UnreadableError."""
        return unfold(call, self._max_bytes)

    def _source(self, call: Call) -> JsonText:
        source = JsonText.read(self.unfold(call), self._known)
        check_once(source, call.api)
        return source

    def _refuse(self, call: Call, options: Options, error: UnreadableError) -> None:
        if may_carry_blocks(call, FIELD) or self._knows(options):
            reason = f"{error}, so that its {FIELD} or its earlier turns cannot be placed"
            raise InvalidRequestError("body", reason, "send one JSON object in UTF-8, plain or compressed by gzip")
