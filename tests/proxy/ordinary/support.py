"""A format of our own for tests, bodies of two APIs, and a forwarder that applies the forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.apis.base import Api, Prompt, Segment
from prefixpilot.apis.chat import Chat
from prefixpilot.core import RequestId
from prefixpilot.formats.base import Region, Repeats, Unit
from prefixpilot.jsontext import JsonText
from prefixpilot.pieces import Span
from prefixpilot.proxy.memory.forms import FormsLedger
from prefixpilot.proxy.ordinary.decision import Asked, Decision
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.ordinary.treat import Ordinary

_NOTE = re.compile(r'<note name="([^"\n]*)">\n(.*?)\n</note>', re.DOTALL)
_ROW = re.compile(r'\{"n": (\d+), "text": ("(?:[^"\\]|\\.)*")\}')


def words(seed: str, number: int = 60) -> str:
    """Prose that no other seed gives: ``number`` words in lines of ten."""
    found = [f"{seed}-{i * 7919 % 1000}" for i in range(number)]
    return "\n".join(" ".join(found[i : i + 10]) for i in range(0, number, 10))


def note(name: str, body: str) -> str:
    """A unit of the format for tests."""
    return f'<note name="{name}">\n{body}\n</note>'


def notes(*named: tuple[str, str]) -> str:
    """A region of it."""
    return "\n".join(note(name, body) for name, body in named)


def row(number: int, body: str) -> str:
    """A unit of the JSON format for tests."""
    return f'{{"n": {number}, "text": {json.dumps(body)}}}'


def find_notes(*, movable: bool = True, ranked: bool = True, repeats: Repeats = "keep-label") -> Recogniser:
    """A recogniser of runs of notes, one line break apart, and of JSON rows in tool results."""

    def find(segment: Segment) -> tuple[Region, ...]:
        if segment.role == "tool" and segment.text.startswith("["):
            return _rows(segment.text)
        regions: list[Region] = []
        units: list[Unit] = []
        for match in _NOTE.finditer(segment.text):
            if units and segment.text[units[-1].span.end : match.start()] != "\n":
                regions.append(Region("notes", tuple(units), movable and segment.role != "tool", ranked, repeats))
                units = []
            units.append(Unit(Span(*match.span()), Span(*match.span(2)), match.group(2), match.group(1)))
        if units:
            regions.append(Region("notes", tuple(units), movable and segment.role != "tool", ranked, repeats))
        return tuple(regions)

    return find


Recogniser = Callable[[Segment], tuple[Region, ...]]


def _rows(text: str) -> tuple[Region, ...]:
    units = [
        Unit(
            Span(*match.span()),
            Span(match.start(2) + 1, match.end(2) - 1),
            json.loads(match.group(2)),
            f"row {match.group(1)}",
        )
        for match in _ROW.finditer(text)
    ]
    return (Region("rows", tuple(units), False, True, "repeat-only", "json"),) if units else ()


class Proxy:
    """Sends bodies through the treatment and keeps what an engine would have got."""

    def __init__(self, recognise: Recogniser | None = None, api: Api | None = None, **settings: Any) -> None:
        self.api = api or Chat()
        self.pilot = ContextPilot(PilotConfig(annotate=0))
        self.ledger = FormsLedger(settings.pop("max_forms", 10_000), settings.pop("max_forms_bytes", 10**7))
        self.ordinary = Ordinary(OrdinarySettings(**settings), self.pilot, self.ledger, recognise or find_notes())
        self._ids = count()

    def read(self, body: dict[str, Any]) -> Prompt:
        prompt = self.api.read(body)
        assert prompt is not None
        return prompt

    def treat(self, body: dict[str, Any], who: bytes = b"", **asked: Any) -> Decision:
        return self.ordinary.treat(Asked(self.read(body), RequestId(f"r{next(self._ids)}"), who, **asked))

    def forwarded(self, body: dict[str, Any], treatment: Decision) -> dict[str, Any]:
        """The body as it is sent: written by way of its text."""
        data = json.dumps(body).encode()
        sent = JsonText.read(data).edited(treatment.edits(self.read(body)))
        value: dict[str, Any] = json.loads(sent)
        return value

    def send(self, body: dict[str, Any], who: bytes = b"", **asked: Any) -> dict[str, Any]:
        """Treat, forward, learn."""
        treatment = self.treat(body, who, **asked)
        sent = self.forwarded(body, treatment)
        self.ordinary.learn(treatment)
        self.ledger.check_invariants()
        return sent

    def texts(self, body: dict[str, Any]) -> list[str]:
        """All strings of a body, in the order in which the model reads them."""
        return [segment.text for segment in self.read(body).segments()]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*named: tuple[str, str, str]) -> dict[str, Any]:
    """An assistant message that makes calls: id, tool, arguments."""
    made = [{"id": i, "type": "function", "function": {"name": tool, "arguments": a}} for i, tool, a in named]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def chat(*messages: dict[str, Any], model: str = "m") -> dict[str, Any]:
    return {"model": model, "messages": list(messages)}


def reads(call: str, path: str, text: str) -> Sequence[dict[str, Any]]:
    """A file is read: the call and its result."""
    return calls((call, "read_file", json.dumps({"path": path}))), result(call, text)
