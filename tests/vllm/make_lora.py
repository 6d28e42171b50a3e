"""Makes an adapter for the model of ``make_tiny.py``: rank 8 on the queries, random weights. No network.

Run with the interpreter that has vLLM: ``python tests/vllm/make_lora.py FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK = 8
WIDTH = 128
LAYERS = 2


def main() -> None:
    import torch
    from safetensors.torch import save_file

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    weights = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, WIDTH) / WIDTH
        weights[f"{name}.lora_B.weight"] = torch.randn(WIDTH, RANK)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main()
