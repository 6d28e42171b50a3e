"""Index files: whole or not there, and every way in which one can be wrong."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot import ContextBlock
from prefixpilot.errors import RetrieverError
from prefixpilot.retrievers.saved import FORMAT, SavedIndex, read_index

BLOCKS = (
    ContextBlock("tea\nwith milk", id=7, title="Drinks", tokens=4),
    ContextBlock("r\u2028ice \ud800"),
    ContextBlock("x", id="a"),
)
INDEX = SavedIndex("words", BLOCKS, {"language": "en"}, {"scores.npy": bytes(range(256)) * 40})


def written(path: Path) -> bytes:
    INDEX.write(path)
    return path.read_bytes()


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    INDEX.write(tmp_path / "i")
    assert read_index(tmp_path / "i", "words") == INDEX
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_a_newer_index_takes_the_place_of_the_older(tmp_path: Path) -> None:
    INDEX.write(tmp_path / "i")
    SavedIndex("words", BLOCKS[:1], {}, {}).write(tmp_path / "i")
    assert read_index(tmp_path / "i", "words").blocks == BLOCKS[:1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_cut_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "i"
    whole = written(path)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(RetrieverError, match="is no index, or a damaged one"):
        read_index(path, "words")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_changed_byte_is_noticed_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Some bytes of an archive say nothing (times, attributes)."""
    path = tmp_path_factory.mktemp("changed") / "i"
    whole = bytearray(written(path))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with suppress(RetrieverError):
        assert read_index(path, "words") == INDEX


def test_another_version_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "i", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": FORMAT + 1, "kind": "words", "facts": {}}))
    with pytest.raises(RetrieverError, match="is of index format 2, and this version reads 1; build it anew"):
        read_index(tmp_path / "i", "words")


def test_another_retrievers_index_is_refused(tmp_path: Path) -> None:
    INDEX.write(tmp_path / "i")
    with pytest.raises(RetrieverError, match="is an index of kind words, not vectors; load it with its own class"):
        read_index(tmp_path / "i", "vectors")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(RetrieverError, match="cannot be read: No such file or directory; build the index and save it"):
        read_index(tmp_path / "i", "words")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RetrieverError, match="cannot be written: No such file or directory; give a file in a folder"):
        INDEX.write(tmp_path / "no" / "i")


def test_ids_of_bytes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    INDEX.write(tmp_path / "i")
    with pytest.raises(RetrieverError, match=r"the id b'\\x00' is of bytes and cannot be saved; give it as a str"):
        SavedIndex("words", (ContextBlock("tea", id=b"\0"),), {}, {}).write(tmp_path / "i")
    assert read_index(tmp_path / "i", "words") == INDEX
