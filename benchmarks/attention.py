"""Whom a model attends to when its documents are ordered.

Appendix B of the paper, and its study of order sensitivity, at small scale.

    python -m benchmarks.attention FOLDER [--questions 40]     # FOLDER: see benchmarks.hf_model; 20 s of CPU a question
    python -m benchmarks.attention --page                      # figures and page again, from results/attention.json

Each question has one document that answers it, which the retriever ranks first, and others about other places. That
document stands at each place in turn: without the order annotation, with it (it names that document first), and with
one that names five others.
Measured are the attention from the annotation and from the answer to each document (mean over heads, layers, tokens),
and the log-likelihood of the answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks.machine import RESULTS, save
from numpy.typing import NDArray

from prefixpilot.annotations import order_annotation
from prefixpilot.bench.intervals import paired

Floats = NDArray[np.float64]

DOCS: Final = Path(__file__).parents[1] / "docs"
DOCUMENTS: Final = 8
ARMS: Final = ("plain", "annotated", "misled")
"""``misled`` is the control: the same sentence names five documents of which none holds the answer."""

_TOWNS: Final = ("Arlen", "Bexley", "Corvin", "Dunmore", "Elsted", "Farrow", "Gilden", "Harwick", "Ilmor", "Jarrow")
_FOUNDERS: Final = ("a miller", "two sisters", "a monk", "a sailor", "a weaver", "a queen", "a smith", "a fisher")
_GOODS: Final = ("salt", "wool", "honey", "glass", "paper", "cheese", "rope", "iron", "candles", "leather")
_RIVERS: Final = ("Aune", "Brack", "Cale", "Doon", "Esk", "Fenn", "Gade", "Holme")


class Asked(NamedTuple):
    """A question.

    Attributes:
        documents: the first one holds the answer, as ranked by the retriever.
    """

    documents: tuple[str, ...]
    question: str
    answer: str


class Looked(NamedTuple):
    """What the model did on one prompt. Documents are by place in the prompt.

    Attributes:
        by_answer, by_annotation: share of attention that goes to each document, of what goes to documents;
            ``None`` without an annotation.
        layers: the first one, for each layer.
        to_documents: share of all attention of the answer that goes to documents.
        likelihood: log-likelihood of a token of the answer, in nats.
    """

    by_answer: Floats
    by_annotation: Floats | None
    layers: Floats
    to_documents: float
    likelihood: float


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens from ``start`` to before ``end``."""

    start: int
    end: int


def questions(count: int, seed: int = 0) -> Iterator[Asked]:
    """Made from a seed; each has documents about as many towns."""
    rng = Random(seed)
    for _ in range(count):
        towns, goods = rng.sample(_TOWNS, DOCUMENTS), rng.sample(_GOODS, DOCUMENTS)
        texts = tuple(
            f"{town} is a small town on the river {rng.choice(_RIVERS)}, founded by {rng.choice(_FOUNDERS)} in "
            f"{rng.randint(1100, 1899)}. Every autumn its people hold a fair, and the town is known for its {good}."
            for town, good in zip(towns, goods, strict=True)
        )
        yield Asked(texts, f"What is the town of {towns[0]} known for?", f"{towns[0]} is known for its {goods[0]}.")


class Model:
    """A causal language model that shows its attention."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._model = loaded.eval()
        self.name = folder.name

    def look(self, asked: Asked, place: int, arm: str) -> Looked:
        """The prompt with the first document at ``place``, from 0."""
        order = [*range(1, place + 1), 0, *range(place + 1, DOCUMENTS)]
        labels = [f"Doc {order.index(rank) + 1}" for rank in range(DOCUMENTS)]
        said = [f"[Doc {i + 1}]\n{asked.documents[rank]}\n\n" for i, rank in enumerate(order)]
        named = labels[:5] if arm == "annotated" else labels[1:6]
        annotation = "" if arm == "plain" else f"{order_annotation(named, rest=True)}\n\n"
        tokens, spans = self._tokens([*said, annotation, asked.question], asked.answer)
        return self._looked(tokens, spans[:DOCUMENTS], spans[DOCUMENTS] if annotation else None, spans[-1])

    def _tokens(self, parts: Sequence[str], answer: str) -> tuple[list[int], list[Span]]:
        """The ids, and where each part, the question and the answer stand."""
        mark = "\x00"
        chat = [{"role": "user", "content": mark}]
        before, _, after = self._tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        ).partition(mark)
        ids: list[int] = []
        spans = []
        for text in (before, *parts, after, answer):
            start = len(ids)
            ids += self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
            spans.append(Span(start, len(ids)))
        return ids, [*spans[1:-2], spans[-1]]

    def _looked(self, tokens: list[int], documents: Sequence[Span], annotation: Span | None, answer: Span) -> Looked:
        torch = self._torch
        with torch.inference_mode():
            out = self._model(torch.tensor([tokens]), output_attentions=True, use_cache=False)
            rows = torch.log_softmax(out.logits[0, answer.start - 1 : answer.end - 1].float(), dim=-1)
            likelihood = float(rows[range(len(rows)), tokens[answer.start : answer.end]].mean())
            heads = torch.stack([layer[0].mean(0) for layer in out.attentions]).double().numpy()
        layers = _to(heads, Span(answer.start - 1, answer.end - 1), documents)
        told = None if annotation is None else _shares(_to(heads, annotation, documents).mean(axis=0))
        means = layers.mean(axis=0)
        return Looked(_shares(means), told, layers, float(means.sum()), likelihood)


def _to(attention: Floats, source: Span, documents: Sequence[Span]) -> Floats:
    """Attention from the tokens of ``source`` to each document, by layer: shape (layers, documents)."""
    rows = attention[:, source.start : source.end]
    return np.stack([rows[:, :, span.start : span.end].sum(axis=2).mean(axis=1) for span in documents], axis=1)


def _shares(values: Floats) -> Floats:
    shares: Floats = values / values.sum()
    return shares


def study(model: Model, count: int) -> dict[str, Any]:
    """All questions, all places, all arms."""
    asked = list(questions(count))
    seen = {arm: [[model.look(q, place, arm) for q in asked] for place in range(DOCUMENTS)] for arm in ARMS}
    return {
        "model": model.name,
        "questions": count,
        "documents": DOCUMENTS,
        "answer_to_documents": {arm: [_mean([x.by_answer for x in at]) for at in seen[arm]] for arm in ARMS},
        "annotation_to_documents": [_mean([_known(x.by_annotation) for x in at]) for at in seen["annotated"]],
        "share_on_documents": {arm: [_mean([x.to_documents for x in at]) for at in seen[arm]] for arm in ARMS},
        "layers_at_middle": {arm: _mean([x.layers for x in seen[arm][DOCUMENTS // 2]]) for arm in ARMS},
        "likelihood": {arm: [_mean([x.likelihood for x in at]) for at in seen[arm]] for arm in ARMS},
        "likelihood_against_first_place": {arm: [_less(seen[arm][0], at) for at in seen[arm]] for arm in ARMS},
        "likelihood_against_plain": {
            arm: [_less(*pair) for pair in zip(seen["plain"], seen[arm], strict=True)] for arm in ARMS[1:]
        },
    }


def _mean(values: Sequence[Any]) -> Any:
    return np.round(np.mean(values, axis=0), 5).tolist()


def _known(values: Floats | None) -> Floats:
    assert values is not None
    return values


def _less(base: Sequence[Looked], mine: Sequence[Looked]) -> list[float]:
    """The mean difference, and its interval."""
    first, second = (np.array([x.likelihood for x in looks]) for looks in (base, mine))
    return [round(v, 4) for v in paired(first, second, lambda b, m: (m - b).mean(axis=-1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if not args.page:
        save("attention", study(Model(args.folder), args.questions))
    from benchmarks.attention_page import write

    write(json.loads((RESULTS / "attention.json").read_text(encoding="utf-8")), DOCS)


if __name__ == "__main__":
    main()
