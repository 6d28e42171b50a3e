"""What every forwarded prompt must hold, read from the two bodies alone: nothing of the code under test is used.

The format is that of ``support.note``; units are told apart by their text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prefixpilot.apis.base import Prompt

NOTE = re.compile(r'<note name="([^"\n]*)">\n(.*?)\n</note>', re.DOTALL)
REPEAT = re.compile(r"\[Unchanged: same text as (.*) above\.\]", re.DOTALL)
RESULT = re.compile(r"the latest result of (\w+)\((.*)\)")
OPENING = re.compile(r'(?:(.*) that begins|the text that begins) "(.*)"')

RESULT_LABEL = "\0result"


class Shown(NamedTuple):
    """A text that stands in full in a forwarded prompt: under a label, or as the result of a call."""

    label: str
    text: str


class Read:
    """Reads a forwarded prompt from its beginning, beside the client's."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.results: dict[str, str] = {}
        self.annotations = 0

    def check(self, client: Prompt, sent: Prompt) -> None:
        """Invariants 1 and 3 on one request."""
        calls = {c.call_id: f"{c.name}({c.arguments})" for m in client.messages for c in m.calls}
        pairs = list(zip(client.segments(), sent.segments(), strict=True))
        for own, forwarded in pairs:
            assert (own.pointer, own.role) == (forwarded.pointer, forwarded.role)
            if own.role == "assistant":
                assert own.text == forwarded.text
            elif own.role == "tool":
                self._result(own.text, forwarded.text, calls[own.call_id or ""])
            else:
                self._text(own.text, forwarded.text)

    def _result(self, own: str, forwarded: str, call: str) -> None:
        """A result is one annotation, or its units are looked at one by one."""
        named = REPEAT.fullmatch(forwarded)
        if named is not None:
            target = RESULT.fullmatch(named[1])
            assert target is not None, forwarded
            assert self.results[f"{target[1]}({target[2]})"] == own, "the latest result of that call is another"
            assert Shown(RESULT_LABEL, own) in self.shown, "stands nowhere in full"
            self.annotations += 1
        else:
            self._text(own, forwarded)
        if forwarded == own:
            self.shown.append(Shown(RESULT_LABEL, own))
        self.results[call] = own

    def _text(self, own: str, forwarded: str) -> None:
        assert NOTE.sub("\0", own) == NOTE.sub("\0", forwarded), f"text outside the units has changed: {forwarded}"
        for given, kept in zip(_runs(own), _runs(forwarded), strict=True):
            self._region(given, kept)

    def _region(self, given: Sequence[Shown], kept: Sequence[Shown]) -> None:
        assert Counter(unit.label for unit in given) == Counter(unit.label for unit in kept), "labels changed"
        missing = Counter(given) - Counter(kept)
        for unit in kept:
            named = REPEAT.fullmatch(unit.text)
            if named is None:
                assert unit in given, "a text that the client did not send"
                self.shown.append(unit)
                continue
            self.annotations += 1
            text = self._meant(named[1])
            assert missing[Shown(unit.label, text)] > 0, "the annotation stands for another text"
            missing[Shown(unit.label, text)] -= 1
        assert not +missing, f"lost: {+missing}"

    def _meant(self, name: str) -> str:
        """The one text in full above that these words mean."""
        label, opening = name, ""
        if (match := OPENING.fullmatch(name)) is not None:
            label, opening = match[1], match[2]
        meant = {s.text for s in self.shown if s.label == label and " ".join(s.text.split()).startswith(opening)}
        assert len(meant) == 1, f"{name!r} means {len(meant)} texts"
        return meant.pop()


def _runs(text: str) -> Iterator[list[Shown]]:
    """Runs of units one line break apart."""
    run: list[Shown] = []
    end = -1
    for match in NOTE.finditer(text):
        if run and text[end : match.start()] != "\n":
            yield run
            run = []
        run.append(Shown(match[1], match[2]))
        end = match.end()
    if run:
        yield run
