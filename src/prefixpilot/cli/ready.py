"""What ``prefixpilot serve`` prints when it is ready: the address, and a curl line that works as pasted."""

from __future__ import annotations

import json
import shlex

QUESTION = "When does the town library open on Saturday?"
BLOCKS = (
    "The town library opens at 10 on Saturdays and is closed on Sundays.",
    "The swimming pool opens at 7 every day.",
)


def curl_line(url: str, model: str) -> str:
    """One line for a POSIX shell: a chat request with two context blocks."""
    body = {
        "model": model,
        "max_tokens": 40,
        "messages": [{"role": "user", "content": QUESTION}],
        "context_blocks": list(BLOCKS),
    }
    data = shlex.quote(json.dumps(body))
    return f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


def ready_text(url: str, engine: str, mode: str, model: str) -> str:
    """The lines printed once the engine answers."""
    return (
        f"PrefixPilot is ready on {url}/v1 (engine: {engine}, mode: {mode}). Try it:\n\n"
        f"{curl_line(url, model)}\n\n"
        "Ctrl-C ends it."
    )
