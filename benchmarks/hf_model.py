"""A GGUF file as a folder of full-precision weights that `transformers` loads in seconds.

python -m benchmarks.hf_model FILE.gguf FOLDER      # needs the extra `quality`; SmolLM2-135M: 70 s of CPU, 540 MB
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """Read the weights as `transformers` reads them, and save them without the note that they were quantised."""
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = read.config
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, name):
            delattr(config, name)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
