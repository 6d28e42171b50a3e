"""The answer to a request in mode explain: what would be sent, and why. Nothing is sent, and nothing is learnt."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.report import shown


def explained(forward: Forward) -> bytes:
    """``{"request_id", "api", "outcome", "changed", "plan", "formats", "changes", "body"}`` as JSON; ``body`` is
    ``null`` if the client's is not JSON. O(bytes)."""
    plan: Any = None
    if forward.report is not None:
        plan = forward.report.full()
    elif forward.treatment is not None:
        plan = forward.treatment.summary()
    elif forward.plan_header is not None:
        plan = json.loads(forward.plan_header)
    answer = {
        "request_id": forward.request_id,
        "api": forward.api,
        "outcome": forward.outcome,
        "changed": forward.touched,
        "plan": plan,
        "formats": [{**asdict(note), "pointer": list(note.pointer)} for note in forward.notes],
        "changes": shown(forward.changes),
        "body": _body(forward.body),
    }
    return json.dumps(answer).encode("ascii")


def _body(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
