"""Slots of the embedded engine outlive it: on the real server, bounded on disk, for the same model only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixpilot.bench.streaming_client import StreamedAnswer, stream_chat
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.engines.llamacpp_saved import MANIFEST, Kept, SavedSlots
from prefixpilot.errors import ConfigError

TEXT = "The harbour master opens the gate at seven, and the ferry leaves when the tide turns. " * 12


def ask(url: str, question: str) -> StreamedAnswer:
    said = [{"role": "user", "content": f"{TEXT}\n{question}"}]
    return stream_chat(url, {"model": "m", "messages": said, "max_tokens": 2, "temperature": 0}, {})


@pytest.mark.engine
def test_a_prompt_is_still_there_behind_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    engine = EmbeddedEngine(tiny_model, context_tokens=1024, parallel=2, slot_directory=tmp_path / "slots")
    with engine:
        assert ask(engine.base_url, "When does it leave?").cached_tokens == 0
    kept = {path.name for path in (tmp_path / "slots").iterdir()}
    assert MANIFEST in kept and len(kept) == 2
    assert (tmp_path / "slots").stat().st_mode & 0o077 == 0
    with engine:
        assert list((tmp_path / "slots").iterdir()) == [], "what was restored is used once"
        again = ask(engine.base_url, "Who opens it?")
        assert again.cached_tokens > 0.9 * again.prompt_tokens
        small = SavedSlots(tmp_path / "slots", "s", 1000)
        assert small.save(engine.base_url) == Kept(0, 0)
        assert [path.name for path in (tmp_path / "slots").iterdir()] == [MANIFEST]


def test_nobody_answers(tmp_path: Path) -> None:
    saved = SavedSlots(tmp_path, "s", 1 << 20)
    (tmp_path / "slot-0.bin").write_bytes(b"x")
    (tmp_path / MANIFEST).write_text(json.dumps({"stamp": "s", "slots": [{"slot": 0, "filename": "slot-0.bin"}]}))
    assert saved.restore("http://127.0.0.1:9") == Kept(0, 0)
    assert saved.save("http://127.0.0.1:9") == Kept(0, 0)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"stamp": "s"}', '{"stamp": "s", "slots": [3]}', '{"stamp": "other", "slots": []}']
)
def test_a_manifest_of_another_engine_or_of_none_restores_nothing(tmp_path: Path, manifest: str) -> None:
    (tmp_path / MANIFEST).write_text(manifest)
    (tmp_path / "slot-0.bin").write_bytes(b"x")
    assert SavedSlots(tmp_path, "s", 1 << 20).restore("http://127.0.0.1:9") == Kept(0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="slot_directory"):
        SavedSlots(tmp_path / "file" / "slots", "s", 1)
