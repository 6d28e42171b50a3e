"""Prompts in the slots of the embedded llama.cpp, kept in a directory from one life of it to the next.

``POST /slots/N?action=save`` writes what a slot has computed to a file, ``action=restore`` reads it back; the server
needs ``--slot-save-path``. What was saved is good for the same model file, engine and slots only, and is used once.
Prompts can be read out of the files: the directory is for its owner alone. A plain blocking API; nothing here raises
but for the directory itself.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from prefixpilot.engines.llamacpp_slots import read_slots
from prefixpilot.errors import ConfigError

MANIFEST: Final = "slots.json"
BOUND_S: Final = 20.0
"""Seconds that saving, or restoring, may take in all; a slot of 8,192 tokens of SmolLM2-135M takes 180 MiB."""

log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What was saved or restored: slots, and the tokens in them."""

    slots: int
    tokens: int


class SavedSlots:
    """The files of one engine. One owner at a time.

    Args:
        directory: made if it is not there.
        stamp: names model, engine and slots; what was saved under another one is deleted.
        max_bytes: of all files; what does not fit is not kept.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(self, directory: Path, stamp: str, max_bytes: int) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{directory} cannot be made ({error.strerror})"
            raise ConfigError("slot_directory", reason, "choose another one, or none") from None
        self._directory = directory
        self._stamp = stamp
        self._max_bytes = max_bytes

    def save(self, url: str) -> Kept:
        """Save all slots that hold a prompt, those with the most tokens first."""
        self._delete()
        engine = _Engine(url)
        reports = [slot for slot in read_slots(engine.ask("GET", "/slots")) if slot.prompt_tokens and not slot.busy]
        saved: list[dict[str, Any]] = []
        total = 0
        for report in sorted(reports, key=lambda slot: (-(slot.prompt_tokens or 0), slot.slot)):
            name = f"slot-{report.slot}.bin"
            tokens = _count(engine.ask("POST", f"/slots/{report.slot}?action=save", {"filename": name}), "n_saved")
            size = self._size(name)
            if tokens and total + size <= self._max_bytes:
                total += size
                saved.append({"slot": report.slot, "filename": name, "tokens": tokens})
            else:
                self._remove(name)
        self._write(saved)
        return Kept(len(saved), sum(each["tokens"] for each in saved))

    def restore(self, url: str) -> Kept:
        """Put the saved prompts back into their slots, and delete the files."""
        engine = _Engine(url)
        back = [
            _count(engine.ask("POST", f"/slots/{slot}?action=restore", {"filename": name}), "n_restored")
            for slot, name in self._saved()
        ]
        self._delete()
        return Kept(sum(map(bool, back)), sum(back))

    def _saved(self) -> Sequence[tuple[int, str]]:
        """Slots and files of the manifest, if it is one of this engine's."""
        try:
            document = json.loads((self._directory / MANIFEST).read_text(encoding="utf-8"))
            if document["stamp"] != self._stamp:
                return ()
            return [(int(each["slot"]), Path(each["filename"]).name) for each in document["slots"]]
        except (OSError, ValueError, KeyError, TypeError):
            return ()

    def _write(self, slots: Sequence[dict[str, Any]]) -> None:
        """The manifest comes last, and whole."""
        path, new = self._directory / MANIFEST, self._directory / f"{MANIFEST}.new"
        try:
            new.write_text(json.dumps({"stamp": self._stamp, "slots": slots}), encoding="utf-8")
            new.replace(path)
        except OSError as error:
            log.warning("the slots of the embedded engine could not be kept: %s", error.strerror)

    def _size(self, name: str) -> int:
        try:
            return (self._directory / name).stat().st_size
        except OSError:
            return 0

    def _remove(self, name: str) -> None:
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s could not be deleted: %s", name, error.strerror)

    def _delete(self) -> None:
        self._remove(MANIFEST)
        for path in sorted(self._directory.glob("slot-*.bin")):
            self._remove(path.name)


class _Engine:
    """Asks a llama.cpp server, for no longer than :data:`BOUND_S` in all."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._until = time.monotonic() + BOUND_S

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """The JSON of an answer; ``None`` for any other, and once the bound has passed."""
        left = self._until - time.monotonic()
        if left <= 0:
            return None
        connection = http.client.HTTPConnection(self._host, timeout=left)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, target, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return json.loads(response.read()) if response.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.warning("%s of the embedded engine failed: %s", target.partition("?")[0], type(error).__name__)
            return None
        finally:
            connection.close()


def _count(document: Any, name: str) -> int:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
