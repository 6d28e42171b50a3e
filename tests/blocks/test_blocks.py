from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefixpilot import ContextBlock
from prefixpilot.blocks import BlockStore, block_identity, estimate_tokens, normalize
from prefixpilot.errors import ConfigError


def test_identity_is_the_rendered_text_and_ids_are_names() -> None:
    assert block_identity(ContextBlock("a", id=1)) == block_identity(ContextBlock("a", id="x"))
    assert block_identity(ContextBlock("a", id=1)) != block_identity(ContextBlock("b", id=1))
    assert block_identity(ContextBlock("a")) != block_identity(ContextBlock("a", title="T"))
    assert block_identity(ContextBlock(id=7)) == 7


def test_identity_is_stable_across_processes() -> None:
    code = "import prefixpilot, prefixpilot.blocks as b; print(b.block_identity(prefixpilot.ContextBlock('é')))"
    seen = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)
    assert seen == {f"{block_identity(ContextBlock('é'))!s}\n".encode()}


def test_any_str_has_an_identity_and_a_length() -> None:
    assert block_identity(ContextBlock("\ud800")) != block_identity(ContextBlock("?"))
    assert estimate_tokens("\ud800") == 1


@pytest.mark.parametrize(("normalization", "equal"), [("none", False), ("whitespace", False), ("unicode", True)])
def test_unicode_normalisation(normalization: str, equal: bool) -> None:
    forms = ContextBlock("ﬁne  print"), ContextBlock("fine print")
    assert (block_identity(forms[0], normalization) == block_identity(forms[1], normalization)) is equal  # type: ignore[arg-type]


def test_whitespace_normalisation_compares_runs_of_whitespace() -> None:
    assert normalize(" a\t\n b ", "whitespace") == "a b"
    assert normalize(" a ", "none") == " a "


def test_the_first_seen_text_is_rendered_under_normalisation() -> None:
    store = BlockStore(10, "whitespace")
    first = store.intern(ContextBlock("a  b"))
    again = store.intern(ContextBlock("a b"))
    assert again == first and again.block.text == "a  b"


def test_without_normalisation_the_callers_block_is_rendered() -> None:
    store = BlockStore(10)
    store.intern(ContextBlock("a", id=1))
    assert store.intern(ContextBlock("a", id=2)).block.id == 2


def test_lengths_are_given_counted_or_estimated() -> None:
    assert BlockStore(10).intern(ContextBlock("x" * 8)).tokens == 2
    assert BlockStore(10).intern(ContextBlock(id=3)).tokens == 1
    assert BlockStore(10).intern(ContextBlock("x", tokens=9)).tokens == 9
    calls: list[str] = []
    store = BlockStore(10, count_tokens=lambda text: calls.append(text) or 5)  # type: ignore[func-returns-value]
    assert [store.intern(ContextBlock("x", title="T")).tokens for _ in range(3)] == [5, 5, 5]
    assert calls == ["T\nx"]


def test_sort_keys_are_ids_then_first_appearance() -> None:
    store = BlockStore(10)
    blocks = [ContextBlock("b"), ContextBlock("a"), ContextBlock(id="z"), ContextBlock(id=9), ContextBlock("c", id=2)]
    ordered = sorted((store.intern(b) for b in blocks), key=lambda s: s.sort_key)
    assert [s.block.id or s.block.text for s in ordered] == [2, 9, "z", "b", "a"]


def test_the_store_is_bounded_by_use() -> None:
    store = BlockStore(2, "whitespace")
    for text in ("a", "b", "a ", "c"):
        store.intern(ContextBlock(text))
    assert len(store) == 2
    assert store.intern(ContextBlock(" a")).block.text == "a"
    assert store.intern(ContextBlock(" b")).block.text == " b"
    with pytest.raises(ConfigError):
        BlockStore(0)


def test_many_blocks_are_interned_as_one_by_one() -> None:
    one, many = BlockStore(3), BlockStore(3)
    blocks = [
        ContextBlock(id=1, tokens=5),
        ContextBlock("t", id=2),
        ContextBlock("t"),
        ContextBlock(id=1),
        ContextBlock(id=3),
    ]
    for _ in range(2):
        assert many.intern_all(blocks) == [one.intern(block) for block in blocks]
    assert len(many) == len(one)
