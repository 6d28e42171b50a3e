"""Scores of an answer, and of the prompt that it was drawn from. Pure.

Exact match and F1 are those of SQuAD 1.1 (Rajpurkar et al. 2016, arXiv 1606.05250): lower case, no punctuation, no
articles; of several reference answers the one counts that fits best.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """As SQuAD compares answers.

    >>> normalized("The  Old Mill, in\\nKarlstad.")
    'old mill in karlstad'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the answer is one of the references, normalised; else 0."""
    found = normalized(answer)
    return float(any(found == normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """The best F1 of the answer's words over the references, in [0, 1]; 0 without references. O(words).

    >>> f1("It was Anna Berg.", ["Anna Berg", "Berg & Sons"])
    0.6666666666666666
    """
    return max((_f1(normalized(answer).split(), normalized(reference).split()) for reference in references), default=0)


def _f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    shared = sum((Counter(answer) & Counter(reference)).values())
    return 2 * shared / (len(answer) + len(reference))


def evidence_recall(prompt: str, evidence: Sequence[str | None]) -> float | None:
    """The share of the evidence that stands word for word in the prompt; ``None`` if there is no evidence to look for.

    Args:
        evidence: texts; ``None`` for one that is not known, which no prompt holds.
    """
    if not evidence:
        return None
    return sum(text is not None and text in prompt for text in evidence) / len(evidence)
