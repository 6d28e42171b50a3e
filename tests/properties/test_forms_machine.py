"""The ledger of forms under any sequence of calls, beside a model that forgets nothing."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.pieces import Span
from prefixpilot.proxy.memory.forms import MAX_SENDERS, FormsLedger, NamedText, Sender, Sent, Target

keys = st.sampled_from([bytes([i]) * 16 for i in range(6)])
senders = st.builds(Sender, st.sampled_from([b"u1", b"u2", b"u3"]), st.sampled_from([bytes([i]) for i in range(8)]))
targets = st.lists(st.builds(Target, st.sampled_from([b"a", b"b"]), st.just("name"), st.booleans()), max_size=2)
forms = st.sampled_from([(), (Span(1, 2), Span(0, 1)), (Span(0, 1), "literal")])
sents = st.builds(
    lambda form, pointed, text: Sent((form,), text, tuple(pointed)),
    forms,
    targets,
    st.sampled_from([(), (NamedText(0, Span(0, 2), Span(0, 1), b"d" * 16, b"r" * 16, True, "label"),)]),
)


class FormsMachine(RuleBasedStateMachine):
    @initialize(entries=st.integers(1, 5), size=st.sampled_from([600, 4_000, 10**6]))
    def start(self, entries: int, size: int) -> None:
        self.bounds = entries, size
        self.ledger = FormsLedger(entries, size)
        self.ever: dict[bytes, list[tuple[Sender, Sent]]] = {}

    @rule(key=keys, sender=senders, sent=sents)
    def record(self, key: bytes, sender: Sender, sent: Sent) -> None:
        kept = self.ledger.record(key, sender, sent)
        self.ever.setdefault(key, []).append((sender, sent))
        assert (self.ledger.recall(key, sender, lambda _: True) is not None) == kept

    @rule(key=keys, sender=senders, dedupe=st.booleans())
    def recall(self, key: bytes, sender: Sender, dedupe: bool) -> None:
        sent = self.ledger.recall(key, sender, lambda form: dedupe or not form.targets)
        if sent is None:
            return
        recorded = self.ever[key]
        assert sent in [form for _, form in recorded]
        assert dedupe or not sent.targets
        if self._nothing_evicted(key):
            usable = [(s, form) for s, form in recorded if dedupe or not form.targets]
            assert not any(s.who == sender.who for s, _ in usable) or sent in [
                form for s, form in usable if s.who == sender.who
            ]

    def _nothing_evicted(self, key: bytes) -> bool:
        few = len({s for s, _ in self.ever.get(key, ())}) <= MAX_SENDERS
        return few and len(self.ever) <= self.bounds[0] and self.bounds[1] == 10**6

    @rule(key=keys, sender=senders)
    def none_but_its_own(self, key: bytes, sender: Sender) -> None:
        sent = self.ledger.recall(key, sender, lambda _: True, own=True)
        mine = [form for s, form in self.ever.get(key, []) if s.who == sender.who]
        assert sent in mine or (sent is None and not (mine and self._nothing_evicted(key)))

    @rule(key=keys, sender=senders)
    def what_a_sender_sent_last_counts(self, key: bytes, sender: Sender) -> None:
        recorded = self.ever.get(key, [])
        mine = [form for s, form in recorded if s == sender]
        alone = all(s == sender or s.who != sender.who for s, _ in recorded)
        if mine and alone and self._nothing_evicted(key):
            assert self.ledger.recall(key, sender, lambda _: True) == mine[-1]

    @rule()
    def clear(self) -> None:
        self.ledger.clear()
        assert len(self.ledger) == self.ledger.size == 0
        self.ever.clear()

    @invariant()
    def holds(self) -> None:
        self.ledger.check_invariants()


TestFormsLedger = FormsMachine.TestCase
