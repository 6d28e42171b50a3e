"""What the engine's windows take: how long each is, by model, and how many bytes of text make a token there.

A window is what the setting says, or what the engine lists: vLLM and SGLang as ``max_model_len``, llama.cpp as
``meta.n_ctx``. Tokens are estimated from bytes, as everywhere, and corrected by what the engine counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_MODELS: Final = 64
BYTES_PER_TOKEN: Final = 4.0
"""Until something has been counted: as :func:`prefixpilot.blocks.estimate_tokens`."""
KEPT_SHARE: Final = 0.9
"""Of what was counted before, each time something is counted."""
MIN_BYTES, MAX_BYTES = 1.0, 8.0
"""Between which bytes for a token are believed: beyond, what was counted is not what was measured (images)."""


class _Counted(NamedTuple):
    bytes: float = 0.0
    tokens: float = 0.0


class Windows:
    """Lengths of windows, in tokens, and what a token is, in bytes. Bounded; not thread-safe.

    Args:
        setting: tokens of every window, if they are set; the engine is not asked then.
    """

    def __init__(self, setting: int | None = None) -> None:
        self._setting = setting
        self._tokens: dict[str, int] = {}
        self._counted: OrderedDict[str, _Counted] = OrderedDict()
        self._wanted = False

    def tokens(self, model: str) -> int | None:
        """The window of a model; of the only one there is, by whatever name; ``None`` if it is not known."""
        if self._setting is not None:
            return self._setting
        only = next(iter(self._tokens.values())) if len(set(self._tokens.values())) == 1 else None
        return self._tokens.get(model, only)

    def bytes(self, model: str, answer_tokens: int) -> int | None:
        """Bytes of text that a prompt may have, so that an answer of so many tokens has room too."""
        tokens = self.tokens(model)
        if tokens is None:
            self._wanted = True
            return None
        return int(max(tokens - answer_tokens, tokens // 4) * self.bytes_per_token(model))

    def wanted(self) -> bool:
        """Whether a window was asked for that is not known, since this was last asked."""
        wanted, self._wanted = self._wanted, False
        return wanted

    def bytes_per_token(self, model: str) -> float:
        """As counted for this model, or as estimated everywhere."""
        counted = self._counted.get(model)
        return BYTES_PER_TOKEN if counted is None else counted.bytes / counted.tokens

    def count(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """The engine has counted a prompt of so many bytes."""
        if prompt_tokens < 1 or not MIN_BYTES <= prompt_bytes / prompt_tokens <= MAX_BYTES:
            return
        before = self._counted.pop(model, _Counted())
        self._counted[model] = _Counted(
            before.bytes * KEPT_SHARE + prompt_bytes, before.tokens * KEPT_SHARE + prompt_tokens
        )
        if len(self._counted) > MAX_MODELS:
            self._counted.popitem(last=False)

    def learn(self, document: Any) -> None:
        """Take the engine's list of models (``GET /v1/models``); what is no list of them is left alone."""
        listed = document.get("data") if isinstance(document, dict) else None
        found = {}
        for entry in listed if isinstance(listed, list) else ():
            tokens = _window(entry) if isinstance(entry, dict) else None
            if tokens is not None and isinstance(entry.get("id"), str):
                found[entry["id"]] = tokens
        self._tokens = dict(list(found.items())[:MAX_MODELS]) or self._tokens


def _window(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    for value in (entry.get("max_model_len"), meta.get("n_ctx"), entry.get("context_length")):
        if type(value) is int and value > 0:
            return value
    return None
