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
        self.ever: dict[bytes, dict[Sender, Sent]] = {}
        self.most: dict[bytes, int] = {}

    @rule(key=keys, sender=senders, sent=sents, replace=st.booleans())
    def record(self, key: bytes, sender: Sender, sent: Sent, replace: bool) -> None:
        forgotten = self.ledger.recall(key, sender, lambda _: True) is None
        kept = self.ledger.record(key, sender, sent, replace=replace)
        assert (self.ledger.recall(key, sender, lambda _: True) is not None) == kept
        known = self.ever.setdefault(key, {})
        if forgotten:
            known.clear()
        if replace or sender not in known:
            for same in [s for s, form in known.items() if s.who == sender.who and form == sent]:
                del known[same]
            known[sender] = sent
        self.most[key] = max(len(known), self.most.get(key, 0))

    @rule(key=keys, sender=senders, dedupe=st.booleans(), own=st.booleans())
    def recall(self, key: bytes, sender: Sender, dedupe: bool, own: bool) -> None:
        sent = self.ledger.recall(key, sender, lambda form: dedupe or not form.targets, own=own)
        usable = [(s, form) for s, form in self.ever.get(key, {}).items() if dedupe or not form.targets]
        mine = [form for s, form in usable if s.who == sender.who]
        if sent is not None and self._few(key):
            assert sent in (mine if own or mine else [form for _, form in usable])
        if self._nothing_evicted(key):
            assert (sent is not None) == bool(mine if own else usable)

    @rule(key=keys, sender=senders)
    def what_a_sender_was_sent_last_counts(self, key: bytes, sender: Sender) -> None:
        if self._nothing_evicted(key) and sender in self.ever.get(key, {}):
            assert self.ledger.recall(key, sender, lambda _: True) == self.ever[key][sender]

    def _few(self, key: bytes) -> bool:
        return self.most.get(key, 0) <= MAX_SENDERS

    def _nothing_evicted(self, key: bytes) -> bool:
        return self._few(key) and len(self.ever) <= self.bounds[0] and self.bounds[1] == 10**6

    @rule()
    def clear(self) -> None:
        self.ledger.clear()
        assert len(self.ledger) == self.ledger.size == 0
        self.ever.clear()
        self.most.clear()

    @invariant()
    def holds(self) -> None:
        self.ledger.check_invariants()


TestFormsLedger = FormsMachine.TestCase
