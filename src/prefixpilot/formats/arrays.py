"""Documents that are elements of an array of the body, not text in a string.

Top-level ``documents`` (vLLM, Cohere) may change places only for models whose chat template prints each of them under
its own ``doc_id``. Where the template or the API numbers by position (Command-R, Anthropic's ``document_index`` and
``search_result_index``), the answer cites positions, and the caller looks them up in the list that it sent: nothing
moves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prefixpilot.apis.base import Pointer, Prompt


@dataclass(frozen=True, slots=True)
class FreeModel:
    """A model whose template prints documents under ids of their own.

    Attributes:
        name: stands in the model's name, whatever its case; no digit follows it.
        source: where this was seen, and when.
    """

    name: str
    source: str


FREE_MODELS: Final[tuple[FreeModel, ...]] = (
    FreeModel("granite-3.3", "chat template of ibm-granite/granite-3.3-*-instruct: one turn per document; 2026-11"),
)
"""Not in it: Granite 3.0 to 3.2 (``Document 0`` by position), Granite 4 (JSON in one turn), Command-R (by position)."""

_PRINTED: Final = frozenset({"doc_id", "title", "text"})
_TEMPLATE: Final = "chat_template"


@dataclass(frozen=True, slots=True)
class ArrayUnit:
    """One document.

    Attributes:
        index: of it in the array.
        whole: canonical JSON of it: equal for what the model reads as equal.
        text: its bare text; empty if it has none that can be read (a PDF, an id of a file).
        label: its id or title.
    """

    index: int
    whole: str
    text: str
    label: str | None


@dataclass(frozen=True, slots=True)
class ArrayRegion:
    """Documents in one array. None of them may be dropped or become a reference.

    Attributes:
        format: ``documents``, ``anthropic_document_blocks`` or ``anthropic_search_results``.
        pointer: of the array in the body.
        size: of the array, other elements counted.
        units: in order.
        movable: the documents may change places among themselves (they are then all that the array holds).
    """

    format: str
    pointer: Pointer
    size: int
    units: tuple[ArrayUnit, ...]
    movable: bool


def find_arrays(prompt: Prompt, free_models: Sequence[str] = ()) -> tuple[ArrayRegion, ...]:
    """The documents of a body outside its strings. O(length of the body); never raises.

    Args:
        free_models: names of further models to which the order of ``documents`` means nothing, as
            :attr:`FreeModel.name`.
    """
    if prompt.api == "messages":
        return tuple(region for message in prompt.messages for region in _blocks(message.value, message.pointer))
    names = [*(model.name for model in FREE_MODELS), *free_models]
    return tuple(_documents(prompt.body, names)) if prompt.api == "chat" else ()


def _documents(body: Mapping[str, Any], free_models: Sequence[str]) -> Iterator[ArrayRegion]:
    """Top-level ``documents``."""
    documents = body.get("documents")
    if isinstance(documents, list) and documents:
        units = tuple(_document(i, value) for i, value in enumerate(documents))
        movable = _is_free(body, free_models) and _have_ids(documents)
        yield ArrayRegion("documents", ("documents",), len(documents), units, movable)


def _document(index: int, value: Any) -> ArrayUnit:
    text = value if isinstance(value, str) else _member(value, "text")
    return ArrayUnit(index, _canonical(value), text or "", _member(value, "doc_id") or _member(value, "title"))


def _is_free(body: Mapping[str, Any], free_models: Sequence[str]) -> bool:
    """Whether the model is listed, and its own template is used."""
    model = body.get("model")
    if not isinstance(model, str) or body.get(_TEMPLATE):
        return False
    return any(_names(model.casefold(), name.casefold()) for name in free_models)


def _names(model: str, name: str) -> bool:
    """Whether ``name`` stands in ``model`` as a whole version number."""
    at = model.find(name) if name else -1
    while at >= 0:
        if not model[at + len(name) : at + len(name) + 1].isdigit():
            return True
        at = model.find(name, at + 1)
    return False


def _have_ids(documents: Sequence[Any]) -> bool:
    """Whether each document has a text and an id of its own, and nothing that a template might print otherwise."""
    if len(documents) < 2 or not all(isinstance(value, dict) and value.keys() <= _PRINTED for value in documents):
        return False
    ids = [_member(value, "doc_id") for value in documents]
    return None not in ids and len(set(ids)) == len(ids) and all(isinstance(v.get("text"), str) for v in documents)


_BLOCKS: Final[Mapping[str, str]] = {
    "document": "anthropic_document_blocks",
    "search_result": "anthropic_search_results",
}


def _blocks(message: Any, pointer: Pointer) -> Iterator[ArrayRegion]:
    """Anthropic's document and search-result blocks of a message, in tool results too."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return
    pointer = (*pointer, "content")
    for kind, name in _BLOCKS.items():
        units = tuple(_block(i, part) for i, part in enumerate(content) if _type(part) == kind)
        if units:
            yield ArrayRegion(name, pointer, len(content), units, False)
    for i, part in enumerate(content):
        if _type(part) == "tool_result":
            yield from _blocks(part, (*pointer, i))


def _block(index: int, part: Mapping[str, Any]) -> ArrayUnit:
    source = part.get("source")
    if part.get("type") == "document":
        text = _member(source, "data") if _type(source) == "text" else _texts(_value(source, "content"))
    else:
        text = _texts(part.get("content"))
    return ArrayUnit(index, _canonical(part), text or "", _member(part, "title") or _member(part, "source"))


def _texts(content: Any) -> str:
    """The texts of content blocks, one after another."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(text for part in parts if (text := _member(part, "text")) is not None)


def _type(part: Any) -> Any:
    return _value(part, "type")


def _value(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _member(value: Any, name: str) -> str | None:
    """A member that is a string, or a number written as one."""
    member = _value(value, name)
    return str(member) if isinstance(member, str | int) and not isinstance(member, bool) else None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
