"""Indexes on disk: one file, whole or not there, that says what it is and notices if it is cut or changed."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixpilot.core import ContextBlock
from prefixpilot.errors import RetrieverError

FORMAT = 1
"""Version of the layout below. A reader knows this one only; an index is built anew from its documents."""

_MANIFEST = "manifest.json"
_BLOCKS = "blocks.jsonl"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, ValueError, TypeError, RuntimeError)
"""What reading a changed archive raises: its own errors, those of what it takes for compressed or locked, and ours."""


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """An index as plain data. On disk: a zip archive (its checksums find damage) of ``manifest.json``,
    ``blocks.jsonl`` (id, title, text and tokens, a line each) and the parts.

    Attributes:
        kind: of which retriever: ``bm25``, ``faiss``.
        blocks: of the corpus, in its order.
        facts: what else the retriever has to know; what ``json`` can write.
        parts: the index itself, by name.
    """

    kind: str
    blocks: tuple[ContextBlock, ...]
    facts: Mapping[str, Any]
    parts: Mapping[str, bytes]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file beside its place and then put it there: readers see the old index or the new one.

        Raises:
            RetrieverError: the file cannot be written, or a block's id is of bytes.
        """
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_MANIFEST, self._manifest())
                archive.writestr(_BLOCKS, "".join(map(_line, self.blocks)))
                for name, part in self.parts.items():
                    archive.writestr(name, part)
            beside.replace(target)
        except OSError as error:
            raise RetrieverError(
                f"{path} cannot be written: {error.strerror}; give a file in a folder that exists"
            ) from error
        finally:
            beside.unlink(missing_ok=True)

    def _manifest(self) -> str:
        return json.dumps({"format": FORMAT, "kind": self.kind, "facts": self.facts, "parts": list(self.parts)})


def read_index(path: str | os.PathLike[str], kind: str) -> SavedIndex:
    """Read what :meth:`SavedIndex.write` wrote.

    Raises:
        RetrieverError: there is no such file, it is damaged, of another version, or of another retriever.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            _check(path, manifest, kind)
            blocks = tuple([_read_block(line) for line in archive.read(_BLOCKS).split(b"\n") if line])
            parts = {str(name): archive.read(name) for name in manifest["parts"]}
            return SavedIndex(kind, blocks, dict(manifest["facts"]), parts)
    except RetrieverError:
        raise
    except OSError as error:
        raise RetrieverError(
            f"{path} cannot be read: {error.strerror or error}; build the index and save it there"
        ) from error
    except _DAMAGED as error:
        raise damaged(path, error) from error


def damaged(path: str | os.PathLike[str], error: Exception) -> RetrieverError:
    """What is raised where a file is not what was written."""
    return RetrieverError(f"{path} is no index, or a damaged one ({error}); build it anew from the documents")


def _check(path: object, manifest: Mapping[str, Any], kind: str) -> None:
    if manifest["format"] != FORMAT:
        raise RetrieverError(
            f"{path} is of index format {manifest['format']}, and this version reads {FORMAT}; build it anew"
        )
    if manifest["kind"] != kind:
        raise RetrieverError(f"{path} is an index of kind {manifest['kind']}, not {kind}; load it with its own class")


def _line(block: ContextBlock) -> str:
    if isinstance(block.id, bytes):
        raise RetrieverError(f"the id {block.id!r} is of bytes and cannot be saved; give it as a str")
    return json.dumps([block.id, block.title, block.text, block.tokens]) + "\n"


def _read_block(line: bytes) -> ContextBlock:
    name, title, text, tokens = json.loads(line)
    return ContextBlock(text, name, title, tokens)
