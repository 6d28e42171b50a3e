"""Lines that hold nothing but an id of the request or the session: ``Request ID: 5f0c...``."""

from __future__ import annotations

import re

from prefixpilot.pieces import Span

_LINE = re.compile(
    r"[ \t]{0,8}(?:[-*] )?[*_`\"]{0,3}"
    r"(?:current[ _-])?(?:x-)?"
    r"(?:request|session|conversation|chat|thread|trace|span|run|turn|message|msg|correlation|invocation|transaction|task|"
    r"job|execution|operation|interaction|event)[ _-]?(?:id|uuid|guid)"
    r"[*_`\"]{0,3}[ \t]{0,4}[:=][ \t]{0,4}[*_`\"]{0,3}[ \t]{0,2}"
    r"(?P<value>[A-Za-z0-9][A-Za-z0-9_.:/+=-]{5,199})"
    r"[*_`\",;]{0,4}[ \t]{0,8}",
    re.IGNORECASE,
)


def is_id_line(text: str, line: Span) -> bool:
    """Whether a line is a label and one id. O(length of the line), which is bounded by what an id can be.

    The value has to look like one: six characters or more, a digit among them, no space.
    """
    found = _LINE.fullmatch(text, *line)
    return found is not None and any(character.isdigit() for character in found["value"])
