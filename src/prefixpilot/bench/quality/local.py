"""A model in this process, by `transformers`: answers and scores without a server. The only file that imports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefixpilot.bench.quality.base import Bounds, Scored
from prefixpilot.bench.quality.cases import Messages
from prefixpilot.errors import MissingExtraError

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
    from transformers.utils import logging
except ImportError:
    raise MissingExtraError("transformers", 'pip install "prefixpilot[quality]"') from None


class LocalModel:
    """A causal language model on the CPU, in 32-bit floats. It keeps the keys and values of the newest prompt, so that
    one with the same beginning computes the rest only.

    Args:
        model: a folder of the model as `transformers` saves it, or a GGUF file, which is then made full precision.
    """

    def __init__(self, model: Path) -> None:
        self.name = f"transformers, {model.stem}"
        logging.disable_progress_bar()
        folder, more = (model, {}) if model.is_dir() else (model.parent, {"gguf_file": model.name})
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **more)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more).eval()
        self._cache: Any = DynamicCache()
        self._held: list[int] = []
        if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
            torch.set_num_threads(len(os.sched_getaffinity(0)))

    def measure(self, messages: Messages, reference: str, bounds: Bounds) -> Scored:
        """See :class:`~prefixpilot.bench.quality.base.QualityEngine`."""
        template = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        before = self._tokenizer(template, add_special_tokens=False)["input_ids"]
        wanted = self._tokenizer(reference, add_special_tokens=False)["input_ids"][: bounds.reference]
        with torch.inference_mode():
            rows = torch.log_softmax(self._logits([*before, *wanted[:-1]], len(wanted)), dim=-1)
            total = sum(float(rows[i, token]) for i, token in enumerate(wanted))
            answer = self._answer(before, bounds.answer)
        return Scored(answer, total, len(wanted), len(before))

    def _answer(self, before: list[int], limit: int) -> str:
        ends = {self._tokenizer.eos_token_id}
        drawn: list[int] = []
        while len(drawn) < limit:
            token = int(self._logits([*before, *drawn], 1)[-1].argmax())
            if token in ends:
                break
            drawn.append(token)
        return str(self._tokenizer.decode(drawn, skip_special_tokens=True)).strip()

    def _logits(self, tokens: list[int], last: int) -> Any:
        """Logits at the last so many places; what is held of the prompt is not computed again."""
        most = min(len(self._held), len(tokens) - last)
        shared = next((i for i in range(most) if self._held[i] != tokens[i]), most)
        if shared < len(self._held):
            self._cache.crop(shared - len(self._held))
        self._held = tokens
        new = torch.tensor([tokens[shared:]])
        return self._model(new, past_key_values=self._cache, use_cache=True, logits_to_keep=last).logits[0]
