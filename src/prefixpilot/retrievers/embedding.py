"""Embeddings: what a retriever wants of an embedding function, and a small local one as the default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixpilot.errors import MissingExtraError, RetrieverError

Embedder = Callable[[Sequence[str]], NDArray[Any]]
"""Texts in, one row each out: shape ``(len(texts), dimension)``, of any float type. Equal texts give equal rows (to
rounding), and no row depends on the texts beside it. It may be called from threads."""

Vectors = NDArray[np.float32]

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_AT_ONCE = 8
"""Texts that are padded to one length: few, since a long one among them costs all of them its length in memory."""


def embed_normalised(embed: Embedder, texts: Sequence[str]) -> Vectors:
    """The rows of ``embed``, checked, each of length 1; a row of zeros stays one.

    Raises:
        RetrieverError: ``embed`` did not give one row of finite numbers for each text.
    """
    given = np.asarray(embed(list(texts)))
    if (
        given.ndim != 2
        or given.shape[0] != len(texts)
        or not given.shape[1]
        or not np.issubdtype(given.dtype, np.floating)
    ):
        raise RetrieverError(
            f"the embedder gave an array of {given.dtype} of shape {given.shape} for {len(texts)} texts; "
            f"it has to give floats of shape ({len(texts)}, dimension)"
        )
    if not np.isfinite(given).all():
        raise RetrieverError("the embedder gave numbers that are not finite; look at the texts it was given")
    rows = given.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


@cache
def local_embedder() -> Embedder:
    """WordLlama's 256-dimensional word vectors, averaged. The model is in its package: nothing is fetched.

    English, some 1,000 texts of 200 words a second on one core; it knows words and not their order. Loaded once
    (0.4 s, 20 MB).

    Raises:
        MissingExtraError: the extra is not installed.
    """
    model = _word_llama()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        spoken = [text if text.strip() else "." for text in texts]  # no words at all have no average
        rows: NDArray[np.float32] = model.embed(spoken, batch_size=_AT_ONCE)
        rows[[not text.strip() for text in texts]] = 0
        return rows

    return embed


def _word_llama() -> Any:
    """Its inference class on the files of its package: its own loader looks for one of them on a hub."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        import wordllama
        from safetensors import safe_open
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("wordllama", 'pip install "prefixpilot[local-embeddings]"') from None
    finally:  # importing it sets up logging for the whole program, which is not its business
        root.handlers[:] = handlers
        root.setLevel(level)
    package = Path(wordllama.__file__).parent
    with safe_open(str(package / _WEIGHTS), framework="np") as weights:
        vectors = weights.get_tensor("embedding.weight").astype(np.float32)
    return wordllama.WordLlamaInference(vectors, Tokenizer.from_file(str(package / _TOKENIZER)))
