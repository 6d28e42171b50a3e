"""The treatment of ordinary requests as the pipeline calls it: :class:`prefixpilot.proxy.steps.Treat`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from threading import RLock

from prefixpilot.apis.base import Prompt
from prefixpilot.core import DEFAULT_TENANT, TenantId
from prefixpilot.jsontext import JsonText
from prefixpilot.proxy.call import Options
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.memory.forms import FormsLedger
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.ordinary.treat import Asked, Decision, Ordinary
from prefixpilot.proxy.settings import Mode
from prefixpilot.proxy.steps import Planner, Treatment

_NOTHING = Treatment()


class OrdinaryTreat:
    """Treats requests without blocks, unless the mode or a header says not to. See :class:`Ordinary`.

    Args:
        ordinaries: one for each mode that treats: what shadow requests would have sent was never sent.
    """

    def __init__(self, ordinaries: Mapping[Mode, Ordinary], recognition: Recognition) -> None:
        self._ordinaries = ordinaries
        self._recognition = recognition

    @classmethod
    def of(cls, settings: OrdinarySettings, planner: Planner, lock: RLock) -> OrdinaryTreat | None:
        """``None`` if no recogniser is on: then bodies are not even read."""
        recognition = Recognition.of(settings, lock)
        if not recognition.recognisers:
            return None
        recognise = recognition.recognise(DEFAULT_TENANT, None)
        modes: tuple[Mode, ...] = ("on", "shadow")
        ledgers = {mode: guarded(FormsLedger(settings.max_forms, settings.max_forms_bytes), lock) for mode in modes}
        return cls({mode: Ordinary(settings, planner, ledgers[mode], recognise) for mode in modes}, recognition)

    def __call__(self, prompt: Prompt, source: JsonText, options: Options) -> Treatment:
        """See :class:`prefixpilot.proxy.steps.Treat`."""
        ordinary = self._ordinaries.get(options.mode)
        if ordinary is None or options.recognise == ():
            return _NOTHING
        asked = Asked(
            prompt,
            options.request_id,
            blake2b(f"{options.tenant}\0{options.credential}".encode(), digest_size=16).digest(),
            options.index_tenant,
            options.recognise,
            dedupe=options.dedupe,
            max_displacement=options.max_displacement,
            fresh=not options.held_out,
        )
        recognise = self._recognition.recognise(options.tenant, options.recognise)
        decision = ordinary.treat(asked, recognise)
        edits = tuple(decision.edits(prompt))
        header = _header(options, decision) if edits else None
        return Treatment(edits, lambda: self._learn(ordinary, prompt, options.tenant, decision), header)

    def _learn(self, ordinary: Ordinary, prompt: Prompt, tenant: TenantId, decision: Decision) -> None:
        ordinary.learn(decision)
        new = (m for i, m in enumerate(prompt.messages) if m.role == "system" or i >= prompt.first_new)
        self._recognition.learn(tenant, (segment for message in new for segment in message.segments))


def _header(options: Options, decision: Decision) -> bytes:
    told = {
        "request_id": options.request_id,
        "mode": options.mode,
        "moved": decision.moved + len(decision.orders),
        "replaced": decision.repeats,
        "saved_tokens": decision.saved,
        "restored": decision.recalled,
    }
    return json.dumps(told, separators=(",", ":")).encode()
