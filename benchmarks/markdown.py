"""Tables of Markdown, and the line that names the machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    at = f", at {m['revision']}" if "revision" in m else ""
    return f"\n\n{m['cpu']}, {m['cores']} cores, load {m['load']} at the end, {m['python']}, NumPy {m['numpy']}{at}.\n"


def share(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
