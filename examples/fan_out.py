"""Many agents over one corpus: what they share comes first and is computed once, each one's role comes last."""

import os

from openai import OpenAI

from prefixpilot.rag import fan_out

CONTRACT = [f"Clause {n}. " + f"The party named in clause {n} pays within {n + 10} days. " * 8 for n in range(6)]
ROLES = ["a lawyer", "an accountant", "an auditor", "the tenant", "the landlord"]

answers = fan_out(
    OpenAI(),
    [f"As {role}, name the clause that matters most to you, and why." for role in ROLES],
    CONTRACT,
    model=os.environ.get("MODEL", "smollm2"),
    max_tokens=30,
)
for role, answer in zip(ROLES, answers, strict=True):
    share = (answer.usage.prefilled_tokens or 0) / (answer.usage.prompt_tokens or 1)
    print(f"{role}: {answer.usage.prompt_tokens} prompt tokens, {share:.0%} of them computed")
