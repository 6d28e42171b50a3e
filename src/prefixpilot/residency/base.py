"""Words that all pictures of a cache share."""

from __future__ import annotations

from prefixpilot.errors import InvariantError


def reported_tokens(held: int, prompt_tokens: int, page_size: int) -> int:
    """What an engine reports as cached of a prompt of which it holds the first ``held`` tokens.

    The last token of a prompt is always computed, since its logits are wanted; of what is left only whole pages count.
    vLLM's scheduler looks up ``num_tokens - 1`` tokens at most; SGLang matches all but the last token as well.

    >>> reported_tokens(64, 64, 16), reported_tokens(64, 65, 16), reported_tokens(48, 65, 16)
    (48, 64, 48)
    """
    usable = min(held, max(prompt_tokens - 1, 0))
    return usable - usable % page_size


def require(holds: bool, what: str) -> None:
    """Raise ``InvariantError`` unless it holds."""
    if not holds:
        raise InvariantError(what)
