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
    print(f"{role}: {answer.usage.prefilled_tokens} of {answer.usage.prompt_tokens} tokens computed")
