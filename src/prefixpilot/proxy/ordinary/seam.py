"""The treatment of ordinary requests as the pipeline calls it: :class:`prefixpilot.proxy.steps.Treat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock

from prefixpilot.apis.base import Pointer, Prompt
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import Edit, JsonText
from prefixpilot.pieces import UNCHANGED, Form, composed
from prefixpilot.proxy.call import Options, RefusedError
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.memory.forms import FormsLedger
from prefixpilot.proxy.ordinary.decision import Asked, Decision
from prefixpilot.proxy.ordinary.notes import Note, not_proved
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.ordinary.told import Times
from prefixpilot.proxy.ordinary.treat import Ordinary
from prefixpilot.proxy.preface import Preface, Prefaced, who
from prefixpilot.proxy.report import UNKNOWN, TreatmentReport
from prefixpilot.proxy.settings import Mode
from prefixpilot.proxy.steady import Steadied
from prefixpilot.proxy.steps import Planner, Treatment
from prefixpilot.volatile.rules import appended

_NOTHING = Treatment()


class OrdinaryTreat:
    """Treats requests without blocks, unless the mode or a header says not to. See :class:`Ordinary`.

    Args:
        ordinaries: one for each mode that treats: what shadow requests would have sent was never sent.
        preface: keeps the front steady, before units are looked for; ``None``: it stays.
        max_displacement: the bound for all requests; a client can only ask for a tighter one. ``None``: no bound.
        cache_state: how the engine's cache is known now, for the report.
    """

    def __init__(
        self,
        ordinaries: Mapping[Mode, Ordinary],
        recognition: Recognition,
        preface: Preface | None = None,
        max_displacement: int | None = None,
        cache_state: Callable[[], str] = lambda: UNKNOWN,
    ) -> None:
        self._ordinaries = ordinaries
        self._recognition = recognition
        self._preface = preface
        self._max_displacement = max_displacement
        self._cache_state = cache_state

    @classmethod
    def of(
        cls,
        settings: OrdinarySettings,
        planner: Planner,
        lock: RLock,
        recognition: Recognition | None = None,
        preface: Preface | None = None,
        max_displacement: int | None = None,
        cache_state: Callable[[], str] = lambda: UNKNOWN,
    ) -> OrdinaryTreat | None:
        """``None`` if nothing is on: then bodies are not even read."""
        recognition = recognition or Recognition.of(settings, lock)
        if not recognition.recognisers and (preface is None or not preface.on):
            return None
        recognise = recognition.recognise(b"", None)
        modes: tuple[Mode, ...] = ("on", "shadow")
        ledgers = {mode: guarded(FormsLedger(settings.max_forms, settings.max_forms_bytes), lock) for mode in modes}
        ordinaries = {mode: Ordinary(settings, planner, ledgers[mode], recognise) for mode in modes}
        return cls(ordinaries, recognition, preface, max_displacement, cache_state)

    def __call__(self, prompt: Prompt, source: JsonText, options: Options) -> Treatment:
        """See :class:`prefixpilot.proxy.steps.Treat`.

        Raises:
            RefusedError: a 400 for the name of a format that there is not.
        """
        ordinary = self._ordinaries.get(options.mode)
        if ordinary is None:
            return _NOTHING
        try:
            self._recognition.check(options.recognise or ())
        except InvalidRequestError as error:
            raise RefusedError.of(error) from error
        prefaced = Prefaced(Steadied(prompt))
        if self._preface is not None:
            prefaced = self._preface.treat(prompt, options, self.times(options))
        steadied = prefaced.steadied
        sender = who(options)
        recognises = bool(self._recognition.recognisers) and options.recognise != ()
        if recognises:
            decision = self._decided(ordinary, steadied, options, sender)
        else:
            decision = Decision(_ended(steadied))
        edits = _edits(prompt, prefaced, decision)
        report = _report(options, decision, steadied, self._cache_state()) if edits else None
        told = self._notes(prompt, options, decision) if options.explain else ()

        def learn() -> None:
            if steadied.learn is not None:
                steadied.learn()
            if recognises:
                self._learn(ordinary, prompt, sender, decision)

        learns = recognises or steadied.learn is not None
        header = None if report is None else report.header()
        return Treatment(edits, learn if learns else None, header, report, told, decision.plans)

    def times(self, options: Options) -> Times | None:
        """The exact times that were told to a sender; ``None`` in a mode that changes nothing."""
        ordinary = self._ordinaries.get(options.mode)
        return None if ordinary is None else Times(ordinary.ledger, who(options))

    def _notes(self, prompt: Prompt, options: Options, decision: Decision) -> tuple[Note, ...]:
        """All that is told of the prompt, in the order of its strings."""
        recognisers = self._recognition.chosen(options.recognise)
        notes = (*decision.notes, *not_proved(prompt.segments(), recognisers, decision.notes))
        places = {segment.pointer: place for place, segment in enumerate(prompt.segments())}
        return tuple(sorted(notes, key=lambda note: places.get(note.pointer, -1)))

    def _decided(self, ordinary: Ordinary, steadied: Steadied, options: Options, sender: bytes) -> Decision:
        asked = Asked(
            steadied.prompt,
            options.request_id,
            sender,
            options.index_tenant,
            options.recognise,
            dedupe=options.dedupe,
            max_displacement=_smaller(options.max_displacement, self._max_displacement),
            own=_demands(options),
            fresh=not options.held_out,
            explain=options.explain,
            endings=steadied.endings,
        )
        return ordinary.treat(asked, self._recognition.recognise(sender, options.recognise))

    def _learn(self, ordinary: Ordinary, prompt: Prompt, client: bytes, decision: Decision) -> None:
        ordinary.learn(decision)
        first_new = prompt.first_new
        new = (m for i, m in enumerate(prompt.messages) if m.role == "system" or i >= first_new)
        self._recognition.learn(client, (segment for message in new for segment in message.segments))

    @property
    def forms(self) -> tuple[int, int]:
        """How many forms are remembered, and their bytes."""
        ledgers = [ordinary.ledger for ordinary in self._ordinaries.values()]
        return sum(map(len, ledgers)), sum(ledger.size for ledger in ledgers)

    def clear(self) -> int:
        """Forget all forms; returns how many there were."""
        gone, _ = self.forms
        for ordinary in self._ordinaries.values():
            ordinary.ledger.clear()
            ordinary.memo.clear()
        return gone


def _edits(client: Prompt, prefaced: Prefaced, decision: Decision) -> tuple[Edit, ...]:
    """The edits of the client's body: each string gets one form, which does what both made of it."""
    front = prefaced.steadied.forms
    if not (front or decision.forms or decision.orders):
        return (*prefaced.steadied.tool_edits, *prefaced.key)
    forms: dict[Pointer, Form] = {}
    for pointer in dict.fromkeys((*front, *decision.forms)):
        forms[pointer] = composed(decision.forms.get(pointer, UNCHANGED), front.get(pointer, UNCHANGED))
    whole = replace(decision, forms=forms).edits(client)
    return (*whole, *prefaced.steadied.tool_edits, *prefaced.key)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _demands(options: Options) -> bool:
    """Whether a request says itself how it is to be treated."""
    return options.recognise is not None or options.max_displacement is not None or not options.dedupe


def _ended(steadied: Steadied) -> dict[Pointer, Form]:
    texts = {segment.pointer: segment.text for segment in steadied.prompt.segments()}
    return {pointer: appended(UNCHANGED, texts[pointer], words) for pointer, words in steadied.endings.items()}


def _report(options: Options, decision: Decision, steadied: Steadied, cache: str) -> TreatmentReport:
    return TreatmentReport(
        options.request_id,
        options.mode,
        decision.moved + len(decision.orders),
        decision.repeats,
        decision.saved,
        decision.recalled,
        steadied.changes,
        decision.predicted,
        cache,
    )
