"""What the proxy writes to stderr: one line a record, for people or for machines.

Neither keys nor text of prompts get there: headers, queries and bodies are never logged, and of an unexpected error the
kind and the place in our code are shown, its message only with ``details``. Of what other libraries say only the
opening words are shown, because they quote what they worked on.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import traceback
from collections import deque
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from prefixpilot.proxy.settings import LogSettings

PACKAGE: Final = "prefixpilot"
CLOSE_S: Final = 2.0
PAUSE_S: Final = 0.05
ACCESS: Final = "prefixpilot.access"
FIELDS: Final = "fields"
"""Name of the attribute of a log record that holds its figures: ``log.info("...", extra={FIELDS: {...}})``."""

request_id: ContextVar[str | None] = ContextVar("prefixpilot_request_id", default=None)
"""Id of the request that is being worked on; every line that is logged meanwhile has it."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: ``time``, ``level``, ``logger``, ``message``, the request's id and figures."""

    def __init__(self, *, details: bool = False) -> None:
        super().__init__()
        self._details = details

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_text(record, details=self._details),
        }
        if (current := request_id.get()) is not None:
            line["request_id"] = current
        line |= getattr(record, FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = exception_text(record.exc_info[1], details=self._details)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """``time level message key=value ...``; control characters are escaped, so that a record is one line."""

    def __init__(self, *, details: bool = False) -> None:
        super().__init__()
        self._details = details

    def format(self, record: logging.LogRecord) -> str:
        figures = dict(getattr(record, FIELDS, {}))
        if (current := request_id.get()) is not None:
            figures.setdefault("request_id", current)
        words = [_time(record), record.levelname, message_text(record, details=self._details)]
        words += [f"{key}=-" if value is None else f"{key}={value}" for key, value in figures.items()]
        text = " ".join(words)
        if record.exc_info and record.exc_info[1] is not None:
            text += " | " + exception_text(record.exc_info[1], details=self._details)
        return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def message_text(record: logging.LogRecord, *, details: bool) -> str:
    """What a record says; of another library's, only its opening words, unless ``details``."""
    if details or record.name == PACKAGE or record.name.startswith(f"{PACKAGE}."):
        return record.getMessage()
    return re.split(r"[\n(<]", str(record.msg), maxsplit=1)[0].strip()


def exception_text(error: BaseException, *, details: bool) -> str:
    """Kind of an error and where it was raised, innermost last; with its messages only if ``details``.

    >>> exception_text(ValueError("the client's text"), details=False)
    'ValueError'
    """
    if details:
        return "".join(traceback.format_exception(error)).strip()
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return " < ".join([type(error).__name__, *reversed(places)])


class BackgroundHandler(logging.Handler):
    """Writes lines in a thread of its own, so that a reader who stops reading holds nothing up. Close it at the end.

    Lines are made where they are logged; at most ``max_lines`` wait. What comes then is left out, and told how much.
    The first line is written at once, those of the next ``PAUSE_S`` seconds together: to wake a thread for each of them
    costs more than all else that is done for it.
    """

    def __init__(self, stream: TextIO, max_lines: int = 10_000) -> None:
        super().__init__()
        self._stream = stream
        self._max = max_lines
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._some = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefixpilot-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) >= self._max:
            self._left_out += 1
        else:
            self._lines.append(self.format(record))
        if not self._some.is_set():
            self._some.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._some.wait()
                self._some.clear()
                self._write_all()
                self._closing.wait(PAUSE_S)
            self._write_all()
        except (OSError, ValueError):  # nobody is there to be told
            return

    def _write_all(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        left_out, self._left_out = self._left_out, 0
        if left_out:
            text = f"{left_out} lines were left out: nobody read them in time"
            lines.append(self.format(logging.LogRecord(PACKAGE, logging.WARNING, "", 0, text, None, None)))
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Write what waits, for at most ``CLOSE_S`` seconds."""
        self._closing.set()
        self._some.set()
        self._thread.join(CLOSE_S)
        super().close()


def configure_logs(settings: LogSettings, handler: logging.Handler, *, others: bool = False) -> None:
    """Send what this package logs to ``handler`` and nowhere else. For commands; an app sets up its own.

    Args:
        others: send it the warnings and errors of other libraries, too.
    """
    formatter = JsonFormatter if settings.format == "json" else TextFormatter
    handler.setFormatter(formatter(details=settings.details))
    logger = logging.getLogger(PACKAGE)
    for before in list(logger.handlers):
        logger.removeHandler(before)
    logger.addHandler(handler)
    logger.setLevel(settings.level.upper())
    logger.propagate = False
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False  # no line shows them
    if others:
        logging.getLogger().addHandler(handler)
    logging.getLogger(ACCESS).setLevel(logging.NOTSET if settings.access else logging.CRITICAL)
