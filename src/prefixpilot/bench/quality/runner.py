"""Asks and scores what is not done yet, case by case, all arms of a case one after the other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from prefixpilot.bench.kept import KeptLines
from prefixpilot.bench.quality.base import Bounds, QualityEngine, Scored
from prefixpilot.bench.quality.cases import Case, Messages, QualityArm
from prefixpilot.errors import ConfigError

ANSWERS: Final = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one case in one arm.

    Attributes:
        prompt: digest of the messages; equal prompts are asked once.
    """

    case: Case
    arm: QualityArm
    prompt: str
    scored: Scored


class _Key(NamedTuple):
    number: int
    arm: str
    prompt: str


def run_cases(
    engine: QualityEngine,
    cases: Sequence[Case],
    bounds: Bounds,
    folder: Path,
    about: Mapping[str, Any],
    on_answer: Callable[[], object] = lambda: None,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Every case in every arm; what ``folder`` holds already is not asked again. Results are in the order of cases.

    Args:
        about: what the answers are of, beside engine and bounds; answers of something else are refused.
        on_answer: called after each.
        is_late: asked before each case that is not done; once it is so, the rest is left for another run.

    Raises:
        ConfigError: the folder is of something else, or cannot be used.
        EngineError: the engine failed; what is complete is kept.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("out", f"{folder}: {error.strerror}", "give a folder that can be made") from None
    kept = KeptLines(folder / ANSWERS, {"quality": {**about, "engine": engine.name, "bounds": list(bounds)}})
    done = {_Key(line["case"], line["arm"], line["prompt"]): Scored(*line["scored"]) for line in kept.found}
    results = []
    for case in cases:
        keys = {arm: _Key(case.number, arm, digest_of(messages)) for arm, messages in case.prompts.items()}
        if any(key not in done for key in keys.values()) and is_late():
            break
        same: dict[str, Scored] = {}
        for arm, messages in case.prompts.items():
            key = keys[arm]
            scored = done.get(key)
            if scored is None:
                scored = same.get(key.prompt) or engine.measure(messages, case.references[0], bounds)
                kept.add({"case": key.number, "arm": key.arm, "prompt": key.prompt, "scored": list(scored)})
            same[key.prompt] = scored
            results.append(Result(case, arm, key.prompt, scored))
            on_answer()
    return results


def digest_of(messages: Messages) -> str:
    """16 bytes over a prompt, as hexadecimal digits."""
    written = json.dumps(list(map(dict, messages)))
    return hashlib.blake2b(written.encode("ascii"), digest_size=16).hexdigest()
