"""Times of day in text that says it is the current time: ``Current date and time: Monday, November 30, 2026 2:03 PM``.

A time counts only directly behind words that call it the current one: times of opening hours, of log lines, of rules
("if the current time is 18:00") and of examples stay. What goes is the time with its seconds, its zone and the joint to
the date before it; the date stays, which is what keeps the text the same for a day.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from prefixpilot.pieces import Form, Span

_WHEN = r"(?:date[ _]?(?:and|&|/|,)?[ _]?time|datetime|timestamp|time|date)"
_LABEL = re.compile(
    rf"\b(?:current|today'?s|present)[ _-](?:local[ _-]|utc[ _-]|system[ _-])?{_WHEN}\b"
    rf"|\b(?:local|system|server|user'?s?(?: local)?)[ _-]{_WHEN}\b(?=[ \t*_)]{{0,4}}[:=])"
    r"|\b(?:today is|it is now|it is currently|right now it is|the time is(?: now)?|time now)\b"
    r"|^[ \t]{0,8}(?:[-*] )?\**(?:now|datetime|date and time|date/time)\**(?=[ \t]{0,4}[:=])"
    r"|<current_(?:date_?time|time)>|<datetime>"
    r"|当前(?:日期和)?时间|现在(?:的)?时间|现在是",
    re.IGNORECASE | re.MULTILINE,
)
_IS = r"[\s*_`\"']{0,4}(?:is)?(?: now| currently)?[\s*_`\"']{0,4}[:=：]?[\s*_`\"'\[(<>]{0,4}(?:it is |on |at |是)?"
_BETWEEN = tuple(
    re.compile(r"[\s*_`\"')]{0,4}" + place + _IS, re.IGNORECASE)
    for place in (r"(?:\([^()]{1,40}\)|in [a-z][a-z/_ ]{1,30})", "")
)
"""Between those words and the time: ``(UTC)``, ``in Berlin is``, a colon. First the one that says more."""

_CONDITION = re.compile(
    r"(?:\b(?:if|when|whenever|until|unless|while|before|after|once|example|e\.g\.|format|like|such as|says?)\b|`)"
    r"[^.;:]{0,32}$",
    re.IGNORECASE,
)

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\.?,? {1,2})?"
_DATE = (
    rf"{_WEEKDAY}(?:"
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|{_MONTH} {{1,2}}\d{{1,2}}(?:st|nd|rd|th)?(?:,? {{1,2}}\d{{4}}(?!:))?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.? {{1,2}}{_MONTH},?(?: {{1,2}}\d{{4}}(?!:))?"
    r"|\d{4}年\d{1,2}月\d{1,2}日"
    r")"
)
_ZONE = (
    r"(?: ?(?:UTC|GMT|Z)(?:[+-]\d{1,2}(?::?\d{2})?)?\b| ?[+-]\d{2}:?\d{2}\b"
    r"|(?-i: [A-Z]{2,4}T\b)|(?-i: [A-Z][a-z]{2,15}/[A-Z]\w{2,20}))?"
    r"(?: ?\([a-z][a-z /_+:0-9-]{1,40}\))?"
)
_READING = re.compile(
    rf"(?:(?P<date>{_DATE})(?P<joint>T|,? at |, ?| [-–] | {{1,3}}|[-–] ?)|(?<!\d)(?<!\d:))"
    r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?: ?(?:[ap]m\b|[ap]\.m\.))?(?![:\d])" + _ZONE,
    re.IGNORECASE,
)

_TODAY = re.compile(
    r"\b(?:today(?:'?s date)?|(?:current|present)[ _-](?:local[ _-])?(?:date|day))\b[^\w\n]{0,6}(?:is )?" + _DATE,
    re.IGNORECASE,
)

_MOST_IN_A_LINE = 8


class Rounding(NamedTuple):
    """A line without its times of day.

    Attributes:
        cuts: spans of the text that go, each with what stands in its place: nothing, or the words for "elsewhere".
        said: from the words that call a time the current one to the end of the last one: what is repeated.
    """

    cuts: tuple[tuple[Span, Form], ...]
    said: Span


class _Reading(NamedTuple):
    time: Span
    said: Span
    dated: bool


def round_line(text: str, line: Span, elsewhere: str) -> Rounding | None:
    """Takes the times of day that a line calls the current one out of it; ``None`` if there is none. O(length).

    Done until none is left, so that doing it again changes nothing.

    Args:
        elsewhere: stands in the place of a time without a date before it.
    """
    if find_clock(text[slice(*line)]) is None:
        return None
    # Each character left, with its place in the text; -1 for those of ``elsewhere``.
    left = [(text[i], i) for i in range(*line)]
    cuts: list[tuple[Span, Form]] = []
    said: list[Span] = []
    for _ in range(_MOST_IN_A_LINE):
        reading = find_clock("".join(character for character, _ in left))
        if reading is None:
            break
        places = [place for _, place in left[slice(*reading.time)]]
        label = [place for _, place in left[slice(*reading.said)]]
        if places != list(range(places[0], places[-1] + 1)) or places[0] < 0 or label[0] < 0:
            return None
        form: Form = () if reading.dated else (elsewhere,)
        cuts.append((Span(places[0], places[-1] + 1), form))
        said.append(Span(label[0], label[-1] + 1))
        left[slice(*reading.time)] = [] if reading.dated else [(character, -1) for character in elsewhere]
    else:
        return None
    return Rounding(tuple(sorted(cuts)), Span(min(span.start for span in said), max(span.end for span in said)))


def find_date(line: str) -> Span | None:
    """The date that a line calls today's, with the words that say so. It is left alone: it changes once a day."""
    found = _TODAY.search(line)
    return Span(*found.span()) if found else None


def find_clock(line: str) -> _Reading | None:
    """The first time of day in one line that the line calls the current one. O(length)."""
    for label in _LABEL.finditer(line):
        if _CONDITION.search(line, max(0, label.start() - 48), label.start()):
            continue
        for pattern in _BETWEEN:
            between = pattern.match(line, label.end())
            reading = _READING.match(line, between.end()) if between else None
            if reading is not None:
                start = reading.start("joint") if reading["date"] else reading.start()
                return _Reading(Span(start, reading.end()), Span(label.start(), reading.end()), bool(reading["date"]))
    return None
