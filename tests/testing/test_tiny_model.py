"""Cutting a GGUF file, on small files written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from prefixpilot.errors import ConfigError
from prefixpilot.testing.tiny_model import WIDTH, cut_model, kv_bytes_per_token, narrow_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three blocks, tensors outside of them, scalar and array fields."""
    path = tmp_path / "source.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_context_length(8192)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_scores([0.5, 1.5, 2.5])
    names = ["token_embd.weight", *(f"blk.{i}.attn_q.weight" for i in range(3)), "output_norm.weight"]
    for number, name in enumerate(names):
        writer.add_tensor(name, np.full((4, 8), number, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(path: Path, *keys: str) -> list[object]:
    fields = GGUFReader(path).fields
    return [fields[key].contents() for key in keys]


def test_the_first_blocks_and_all_else_are_kept(source: Path, tmp_path: Path) -> None:
    target = cut_model(source, tmp_path / "cut.gguf", layers=2)
    tensors = {t.name: float(t.data.flat[0]) for t in GGUFReader(target).tensors}
    assert tensors == {
        "token_embd.weight": 0.0,
        "blk.0.attn_q.weight": 1.0,
        "blk.1.attn_q.weight": 2.0,
        "output_norm.weight": 4.0,
    }
    assert values(target, "llama.block_count", "llama.context_length") == [2, 8192]
    kept = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "general.architecture")
    assert values(target, *kept) == values(source, *kept)


def test_the_target_replaces_an_older_one_whole(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "cut.gguf"
    target.write_bytes(b"old")
    cut_model(source, target, layers=1)
    assert values(target, "llama.block_count") == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf", "source.gguf"]


@pytest.mark.parametrize("layers", [0, -1, 4])
def test_layers_out_of_range_are_refused_and_nothing_is_written(source: Path, tmp_path: Path, layers: int) -> None:
    with pytest.raises(ConfigError, match=rf"layers: is {layers}; use an int from 1 to 3"):
        cut_model(source, tmp_path / "cut.gguf", layers)
    assert [p.name for p in tmp_path.iterdir()] == ["source.gguf"]


def test_a_source_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source: .* does not exist"):
        cut_model(tmp_path / "none.gguf", tmp_path / "cut.gguf")


def test_a_narrow_model_keeps_the_tokenizer_alone(source: Path, tmp_path: Path) -> None:
    target = narrow_model(source, tmp_path / "narrow.gguf")
    assert values(target, "tokenizer.ggml.tokens", "llama.context_length") == [["a", "b", "c"], 8192]
    shapes = {t.name: t.data.shape for t in GGUFReader(target).tensors}
    assert shapes["token_embd.weight"] == (3, WIDTH)
    assert {name for name in shapes if name.startswith("blk.")} >= {"blk.0.attn_q.weight", "blk.0.ffn_down.weight"}
    longer = cut_model(source, tmp_path / "longer.gguf", 1, 32_768)
    assert values(longer, "llama.context_length", "llama.block_count") == [32_768, 1]
    again = narrow_model(source, tmp_path / "again.gguf")
    assert again.read_bytes() == target.read_bytes()


def test_kv_of_a_token_is_that_of_all_layers(source: Path, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "sizes.gguf", "llama")
    for add, value in (
        (writer.add_block_count, 30),
        (writer.add_embedding_length, 576),
        (writer.add_head_count, 9),
        (writer.add_head_count_kv, 3),
    ):
        add(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert kv_bytes_per_token(tmp_path / "sizes.gguf") == 23_040
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        kv_bytes_per_token(Path(__file__))
