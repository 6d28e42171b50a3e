"""Makes the model that the tests on vLLM serve: a Llama with random weights and a tokenizer of its own. No network.

Run with the interpreter that has vLLM: ``python tests/vllm/make_tiny.py FOLDER``. Its text is nonsense; its prefix
cache is vLLM's. The tokenizer is a byte-level BPE trained on sources of the standard library, so every text can be
tokenized; the chat template keeps turn n a prefix of turn n + 1.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

SPECIAL = ("<|bos|>", "<|start|>", "<|end|>")
VOCABULARY = 2048
CONTEXT = 8192
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def train_tokenizer(folder: Path) -> int:
    """Write a tokenizer to ``folder``; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    texts = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    tokenizer.train([str(path) for path in texts], trainer)
    bos, _, end = SPECIAL
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=end, pad_token=bos)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def make_weights(folder: Path, vocabulary: int) -> None:
    """Write a Llama of two layers with random weights, the same in every run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    heads: dict[str, int] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=True,
        **heads,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_weights(folder, train_tokenizer(folder))


if __name__ == "__main__":
    main()
