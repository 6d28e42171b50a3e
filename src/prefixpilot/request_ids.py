"""The request ids that engines make of ours: the one place where they are taken apart.

vLLM takes the id from the header ``X-Request-Id`` and writes ``chatcmpl-ID`` for a chat and ``cmpl-ID-N`` for the N-th
prompt of a completion; its core adds ``-`` and 8 random hexadecimal digits (from 0.14 on,
https://github.com/vllm-project/vllm/pull/27987), and of a request for several answers each is ``N_`` and the id
(``vllm/v1/engine/parallel_sampling.py``). SGLang takes ``rid`` as it is and adds ``_N`` for the N-th prompt of a
request (``GenerateReqInput`` in ``sglang/srt/managers/io_struct.py``).

vLLM's Responses API does not read the header: it draws ``resp_`` and a number, which nothing relates to a request of
ours, unless the body names one in ``request_id``; its core has ``ID_N`` then, N for each call of the model. APIs write
``resp_ID`` and ``msg_ID`` where they take over an id.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_ANSWER: Final = re.compile(r"\A\d+_")
_RANDOM: Final = re.compile(r"-[0-9a-f]{8}\Z")
_PROMPT: Final = re.compile(r"_\d+\Z")
_PREFIX: Final = re.compile(r"\A(?:chatcmpl-|generate-tokens-|resp_|msg_)")
_COMPLETION: Final = re.compile(r"\Acmpl-(.+?)(?:-\d+)?\Z", re.DOTALL)


def _without(pattern: re.Pattern[str]) -> Callable[[str], str]:
    return lambda text: pattern.sub("", text)


_STEPS: Final[tuple[Callable[[str], str], ...]] = (
    _without(_ANSWER),
    _without(_RANDOM),
    lambda text: _COMPLETION.sub(r"\1", text),
    _without(_PREFIX),
    _without(_PROMPT),
)
"""From the outside in. A completion's number goes with its prefix: vLLM never writes one without the other."""


def spellings(request_id: str) -> tuple[str, ...]:
    """What an engine's id may have been before the engine added to it: itself, then with less and less of it.

    An id of ours may look like one of an engine, so whoever knows the ids that there are takes the first it knows. A
    bare ``-N`` is of no engine, and stays: ``job-1`` is not ``job``.

    >>> spellings("cmpl-a-0-1f2e3d4c")
    ('cmpl-a-0-1f2e3d4c', 'cmpl-a-0', 'a-0-1f2e3d4c', 'a')
    """
    taken: dict[str, tuple[int, ...]] = {request_id: ()}
    for number, step in enumerate(_STEPS):
        for text, before in list(taken.items()):
            steps = (*before, number)
            less = step(text)
            if less not in taken or _rank(steps) < _rank(taken[less]):
                taken[less] = steps
    taken.pop("", None)
    return tuple(sorted(taken, key=lambda text: _rank(taken[text])))


def _rank(steps: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Few steps come first."""
    return len(steps), steps
