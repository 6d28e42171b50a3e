"""Makes a small GGUF model of a whole one, and says what its KV cache takes.

What :func:`cut_model` makes is a real model for a real engine: same tokenizer, chat template, context, and a fraction
of the prefill time (SmolLM2-135M cut from 30 blocks to 2: about 1,900 tokens/s on 2 cores in place of 90). Its text is
nonsense: it serves to test caching, never answers. :func:`narrow_model` makes one whose prefill costs next to nothing:
its counts are those of the whole model, its times say nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from prefixpilot.engines.models import check_gguf
from prefixpilot.errors import ConfigError, MissingExtraError

try:
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
except ImportError:
    raise MissingExtraError("gguf", "pip install gguf") from None

WIDTH: Final = 64
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.")


def cut_model(source: str | Path, target: str | Path, layers: int = 2, context_tokens: int | None = None) -> Path:
    """Write to ``target`` the model at ``source`` with its first ``layers`` transformer blocks only.

    ``context_tokens``: the longest prompt that it says it takes (llama.cpp allows no more); ``None``: as the source.
    The target appears whole or not at all. Takes a few seconds, and memory of the size of the result.

    Returns:
        ``target`` as a Path.

    Raises:
        ConfigError: ``source`` is no GGUF file, or ``layers`` is not between 1 and its number of blocks.
    """
    source, target = check_gguf(source, "source"), Path(target)
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    blocks = int(reader.fields[count_key].contents())
    if not 1 <= layers <= blocks:
        raise ConfigError("layers", f"is {layers}", f"use an int from 1 to {blocks}, the blocks of {source.name}")
    tensors = [(t.name, t.data, t.tensor_type) for t in reader.tensors if _kept(t.name, layers)]
    return _written(reader, target, {count_key: layers, **_context(architecture, context_tokens)}, tensors)


def narrow_model(source: str | Path, target: str | Path, context_tokens: int | None = None) -> Path:
    """Write to ``target`` a model of one block, WIDTH numbers wide, with random weights (always the same ones), and the
    tokenizer, chat template and context of the llama model at ``source``. As :func:`cut_model` otherwise.

    Raises:
        ConfigError: ``source`` is no GGUF file, or of another architecture than llama.
    """
    source, target = check_gguf(source, "source"), Path(target)
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture != "llama":
        raise ConfigError("source", f"is of the architecture {architecture}", "use a llama model, as SmolLM2")
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    rng = np.random.default_rng(0)

    def drawn(name: str, *shape: int) -> tuple[str, Any, None]:
        return f"{name}.weight", rng.normal(0, 0.05, shape).astype(np.float16), None

    def ones(name: str) -> tuple[str, Any, None]:
        return f"{name}.weight", np.ones(WIDTH, dtype=np.float32), None

    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors = [
        drawn("token_embd", vocabulary, WIDTH),
        ones("output_norm"),
        ones("blk.0.attn_norm"),
        ones("blk.0.ffn_norm"),
        *(drawn(f"blk.0.{name}", WIDTH, WIDTH) for name in square),
    ]
    sizes = {"embedding_length": WIDTH, "feed_forward_length": WIDTH, "rope.dimension_count": WIDTH, "block_count": 1}
    heads = {"attention.head_count": 1, "attention.head_count_kv": 1}
    changed = {f"llama.{name}": value for name, value in {**sizes, **heads}.items()}
    return _written(reader, target, {**changed, **_context("llama", context_tokens)}, tensors)


def kv_bytes_per_token(path: str | Path) -> int:
    """Bytes that llama.cpp's KV cache takes for each token of a prompt: 16-bit keys and values, all layers alike.

    Raises:
        ConfigError: no GGUF file lies at ``path``.
    """
    fields = GGUFReader(check_gguf(path)).fields
    architecture = str(fields["general.architecture"].contents())

    def number(name: str, otherwise: int) -> int:
        field = fields.get(f"{architecture}.{name}")
        return otherwise if field is None else int(field.contents())

    heads = number("attention.head_count", 1)
    width = number("embedding_length", 0) // heads
    dimensions = number("attention.key_length", width) + number("attention.value_length", width)
    return 2 * number("block_count", 0) * number("attention.head_count_kv", heads) * dimensions


def _context(architecture: str, tokens: int | None) -> dict[str, int]:
    return {} if tokens is None else {f"{architecture}.context_length": tokens}


def _written(reader: GGUFReader, target: Path, changed: dict[str, int], tensors: list[tuple[str, Any, Any]]) -> Path:
    """The target, whole or not at all. ``tensors``: name, values, type (``None``: that of the values)."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        writer = GGUFWriter(partial, str(reader.fields["general.architecture"].contents()))
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue  # the writer writes these itself
            kind = field.types[0]
            element = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, changed.get(field.name, field.contents()), kind, sub_type=element)
        for name, values, tensor_type in tensors:
            writer.add_tensor(name, values, raw_dtype=tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _kept(tensor: str, layers: int) -> bool:
    """Whether a tensor belongs to no transformer block, or to one of the first ``layers``."""
    block = _BLOCK_TENSOR.match(tensor)
    return block is None or int(block[1]) < layers
