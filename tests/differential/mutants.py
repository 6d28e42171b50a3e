"""Wrong proxies: each breaks one promise, so that the oracle can be seen to notice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, Final, Literal, NamedTuple

from prefixpilot import ContextPilot, Plan
from prefixpilot.core import PlannedRequest
from prefixpilot.jsontext import Edit, JsonText, SetText
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.memory.forms import FormsLedger, Sender, Sent
from prefixpilot.proxy.memory.history import History
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import Brought, LedgerKey, Restoration, Turn
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Reply, Said
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.seam import OrdinaryTreat
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.ordinary.treat import Ordinary

from .reading import Kind

Script = Literal["blocks", "ordinary"]


def drop_a_block(plan: Plan) -> str:
    """A renderer that forgets the last block."""
    return render_blocks(replace(plan, blocks=plan.blocks[:-1]) if len(plan.blocks) > 2 else plan)


def swap_labels(plan: Plan) -> str:
    """A renderer that puts the first two texts under each other's labels."""
    if len(plan.blocks) < 2 or any(block.location_annotation for block in plan.blocks[:2]):
        return render_blocks(plan)
    first, second, *others = plan.blocks
    return render_blocks(
        replace(plan, blocks=(first._replace(block=second.block), second._replace(block=first.block), *others))
    )


class OneForAll(Ledger):
    """A ledger without credentials in its keys."""

    def restore(
        self, key: LedgerKey, history: History, *, with_newest: bool, brought: Brought | None = None
    ) -> Restoration:
        return super().restore(_anyones(key), history, with_newest=with_newest, brought=brought)

    def find_retry(self, key: LedgerKey, chain: bytes, parent: Turn | None, given: bytes) -> Turn | None:
        return super().find_retry(_anyones(key), chain, parent, given)

    def record(self, key: LedgerKey, turn: Turn, answer: Reply, heard: Said = NOTHING_SAID) -> bool:
        return super().record(_anyones(key), turn, answer, heard)


def _anyones(key: LedgerKey) -> LedgerKey:
    return key._replace(credential="")


class Stale(Ledger):
    """A ledger that knows what has been said and does not put it back."""

    def restore(self, *args: Any, **more: Any) -> Restoration:
        restored = super().restore(*args, **more)
        return _WithoutTexts(restored.turns) if restored.turns else restored


class _WithoutTexts(Restoration):
    @property
    def texts(self) -> dict[int, str]:
        return {}


class Forgetful(Ledger):
    """A ledger that forgets every third turn."""

    calls = 0

    def record(self, key: LedgerKey, turn: Turn, answer: Reply, heard: Said = NOTHING_SAID) -> bool:
        self.calls += 1
        return self.calls % 3 == 0 or super().record(key, turn, answer, heard)


class Mixed(ContextPilot):
    """A planner whose batches come back with each other's plans."""

    def propose_batch(self, requests: Any, *args: Any, **more: Any) -> list[PlannedRequest]:
        planned = super().propose_batch(requests, *args, **more)
        plans = [entry.plan for entry in planned]
        return [replace(entry, plan=plan) for entry, plan in zip(planned, plans[1:] + plans[:1], strict=True)]


def to_the_wrong_message(source: JsonText, edits: Sequence[Edit]) -> bytes:
    """Puts each text of two where the other belongs."""
    texts = [edit for edit in edits if isinstance(edit, SetText)]
    if len(texts) > 1:
        first, second, *others = texts
        rest = [edit for edit in edits if not isinstance(edit, SetText)]
        swapped = (SetText(first.pointer, second.text), SetText(second.pointer, first.text))
        return source.edited([*swapped, *others, *rest])
    return source.edited(edits)


def written_anew(source: JsonText, edits: Sequence[Edit]) -> bytes:
    """Parses and writes the body: numbers and escapes become other ones."""
    return json.dumps(json.loads(source.edited(edits))).encode()


def without_a_field(source: JsonText, edits: Sequence[Edit]) -> bytes:
    """Drops what it does not know."""
    body = source.edited(edits)
    document = json.loads(body)
    return body if document.pop("x_vendor", None) is None else json.dumps(document).encode()


class Trusting(FormsLedger):
    """Forms come back whether or not what they point to still stands there."""

    def recall(self, key: bytes, sender: Sender, holds: Callable[[Sent], bool], *, own: bool = False) -> Sent | None:
        return super().recall(key, sender, lambda sent: True, own=own)


class Amnesiac(FormsLedger):
    """Every form is forgotten, so that history is sent as the client has it."""

    def record(self, key: bytes, sender: Sender, sent: Sent, *, replace: bool = True) -> bool:
        return False


def _treat(ledger: type[FormsLedger]) -> OrdinaryTreat:
    settings = OrdinarySettings()
    recognition = Recognition.of(settings, RLock())
    recognise = recognition.recognise(b"", None)
    forms = ledger(settings.max_forms, settings.max_forms_bytes)
    return OrdinaryTreat({"on": Ordinary(settings, ContextPilot(), forms, recognise)}, recognition)


class Mutant(NamedTuple):
    """A wrong proxy.

    Attributes:
        script: the conversations that it is driven with.
        steps: of the app, in the place of the right ones.
        kinds: what the oracle may call it.
    """

    script: Script
    steps: Callable[[], Mapping[str, Any]]
    kinds: frozenset[Kind]


def _ledger(kind: type[Ledger]) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"ledger": kind(10_000, 512, 1 << 26)}


MUTANTS: Final[Mapping[str, Mutant]] = {
    "a block is dropped": Mutant("blocks", lambda: {"render": drop_a_block}, frozenset({"evidence lost"})),
    "labels are swapped": Mutant("blocks", lambda: {"render": swap_labels}, frozenset({"wrong pairing"})),
    "no credential in the key": Mutant("blocks", _ledger(OneForAll), frozenset({"users mixed", "frozen prefix"})),
    "annotations without their turns": Mutant("blocks", _ledger(Stale), frozenset({"evidence lost", "frozen prefix"})),
    "turns are forgotten": Mutant("blocks", _ledger(Forgetful), frozenset({"frozen prefix"})),
    "plans of a batch are mixed": Mutant(
        "blocks", lambda: {"pilot": Mixed()}, frozenset({"evidence lost", "wrong pairing", "users mixed"})
    ),
    "texts go to the wrong message": Mutant("blocks", lambda: {"place": to_the_wrong_message}, frozenset({"changed"})),
    "forms go to the wrong message": Mutant(
        "ordinary", lambda: {"place": to_the_wrong_message}, frozenset({"evidence lost"})
    ),
    "bodies are written anew": Mutant("blocks", lambda: {"place": written_anew}, frozenset({"changed"})),
    "an unknown field is dropped": Mutant("ordinary", lambda: {"place": without_a_field}, frozenset({"changed"})),
    "stale forms": Mutant(
        "ordinary", lambda: {"treat": _treat(Trusting)}, frozenset({"evidence lost", "unclear words"})
    ),
    "forms are forgotten": Mutant("ordinary", lambda: {"treat": _treat(Amnesiac)}, frozenset({"frozen prefix"})),
}
