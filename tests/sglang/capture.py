"""Captures what SGLang's own cache, event recorder and publisher write, for ``tests/wire/sglang-0.5.23-radix/``.

``PREFIXPILOT_SGLANG_PYTHON=... PREFIXPILOT_SGLANG_PATH=... python -m tests.sglang.capture FOLDER``. Twelve pages of 16
tokens: prompts that share a head, one under a salt, evictions, a flush in between. Each payload is a file;
``answers.json`` says what the cache held of every prompt after each batch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.sglang.process import PATH_VARIABLE, PYTHON_VARIABLE, Prompt, RadixCacheProcess
from tests.vllm.capture import replay
from tests.vllm.server import free_port

PAGE = 16
HEAD = (10, 40)
PROMPTS: list[tuple[Prompt, str | None]] = [
    ([HEAD, (1000, 60)], None),
    ([HEAD, (1000, 30), (2000, 30)], None),
    ([HEAD, (1000, 60)], "tenant-a"),
    ([HEAD, (3000, 90)], None),
    ([HEAD, (1000, 60), (4000, 20)], None),
]
FLUSH = "flush"
STEPS: list[int | str] = [0, 1, 2, 3, 4, 0, FLUSH, 1, 0]
"""Numbers of prompts."""


def step(process: RadixCacheProcess, what: int | str) -> dict[str, Any]:
    """What was done, and what the cache says behind it."""
    cached = None
    if isinstance(what, int):
        prompt, salt = PROMPTS[what]
        (cached,) = process.do("take", prompts=[prompt], salt=salt)
    else:
        process.do("reset")
    published = process.do("publish") > 0
    held = [process.do("held", prompts=[prompt], salt=salt)[0] for prompt, salt in PROMPTS]
    return {"did": what, "cached": cached, "published": published, "held": held, "pages": process.do("pages")}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    publish, again = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    events = {"publisher": "zmq", "endpoint": publish, "replay_endpoint": again, "bind": True, "topic": "kv-events"}
    with RadixCacheProcess(os.environ[PYTHON_VARIABLE], os.environ[PATH_VARIABLE]) as process:
        process.do("open", page=PAGE, capacity=12 * PAGE, events=events)
        steps = [step(process, what) for what in STEPS]
        batches = sum(each["published"] for each in steps)
        payloads = replay(again)
        while len(payloads) < batches:
            payloads = replay(again)
        process.do("close")
    for number, payload in enumerate(payloads):
        (folder / f"{number:03d}.msgpack").write_bytes(payload)
    answers = {"page": PAGE, "prompts": PROMPTS, "steps": steps}
    (folder / "answers.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
