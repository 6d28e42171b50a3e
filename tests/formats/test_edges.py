"""Joints without marks: what is proved is a border of whole documents, in every corpus that may mislead."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.errors import ConfigError
from prefixpilot.formats.edges import MAX_RUN, MAX_TEXTS, EdgeStore

LETTERS = "abcdefgh"


@cache
def long(name: str) -> str:
    """A paragraph that is long enough to be a document."""
    return f"{name}: " + "the mill at the lower weir grinds rye on Mondays and spelt on Fridays, " * 2


def longs(names: str) -> list[str]:
    return [long(name) for name in names]


def taught(*strings: str, framed: bool = True) -> EdgeStore:
    store = EdgeStore()
    for names in strings:
        store.observe("f", longs(names), framed)
    store.check_invariants()
    return store


def test_documents_met_apart_are_proved() -> None:
    store = taught("bcad", "dabc", "cdba")
    assert store.joints("f", longs("adcb"), True) == (0, 1, 2, 3, 4)


def test_nothing_is_proved_by_one_other_request() -> None:
    assert taught("ba").joints("f", longs("ab"), True) == ()


def test_the_same_string_again_proves_nothing() -> None:
    assert taught("abc", "abc", "abc", "abc").joints("f", longs("abc"), True) == ()


def test_another_format_proves_nothing() -> None:
    store = taught("bcad", "dabc", "cdba")
    assert store.joints("g", longs("adcb"), True) == ()


def test_a_document_of_two_paragraphs_stays_whole() -> None:
    """``ab`` is one document: b always follows a."""
    store = taught("abcd", "cabd", "dcab", "cdab", "dabc")
    assert store.joints("f", longs("cabd"), True) == ()  # known already: too few others that differ
    assert store.joints("f", longs("dcabe"), True)[:2] == (0, 1)
    for text in ("eabcd", "dabec", "ceabd"):
        joints = store.joints("f", longs(text), True)
        assert text.index("b") not in joints


def test_what_is_new_stays_with_what_touches_it() -> None:
    store = taught("bcad", "dabc", "cdba", "acdb")
    assert store.joints("f", longs("dcnba"), True) == (0, 1, 4, 5)  # c, n and b together


def test_a_text_met_twice_in_a_string_proves_nothing() -> None:
    store = taught("bcad", "dabc", "cdba", "aa")
    assert 2 not in store.joints("f", longs("dcab"), True)
    assert 3 not in store.joints("f", longs("dcab"), True)
    assert taught("bcad", "dabc", "cdba").joints("f", longs("dacda"), True) == ()


def test_short_texts_prove_nothing() -> None:
    store = EdgeStore()
    for names in ("bcad", "dabc", "cdba"):
        store.observe("f", list(names), True)
    assert store.joints("f", list("adcb"), True) == ()


def test_a_frame_never_moves() -> None:
    """``xy`` opens every string, ``z`` closes it; neither of them is a document."""
    store = taught("xybcadz", "xydabcz", "xycdbaz", framed=False)
    assert store.joints("f", longs("xyadcbz"), False) == (2, 3, 4, 5, 6)


def test_a_document_beside_something_new_stays_there() -> None:
    """``n`` may be the rest of a document that begins with b, or of the prompt."""
    store = taught("xybcadz", "xydabcz", "xycdbaz", framed=False)
    assert store.joints("f", longs("xyadcbn"), False) == (2, 3, 4, 5)
    assert store.joints("f", longs("xyadcbnz"), False) == (2, 3, 4, 5)


def test_two_that_are_mostly_met_together_stay_together() -> None:
    store, asked = EdgeStore(max_meetings=100), longs("cabde")
    for names in map("".join, itertools.permutations("abcd")):
        if "ab" not in names:
            store.observe("f", longs(names), True)
    assert store.joints("f", asked, True) == (0, 1, 2, 3, 5)
    for names in map("".join, itertools.permutations("abcdf")):
        if "ab" in names:
            store.observe("f", longs(names), True)
    assert store.joints("f", asked, True) == (0, 1, 3, 5)


def test_a_marked_edge_differs_from_itself() -> None:
    """``b`` and ``d`` have stood at an edge in most strings, and at nothing else that is the same."""
    assert taught("db", "bc", "ad").joints("f", longs("bd"), True) == (0, 1, 2)


def test_a_string_that_is_known_speaks_neither_for_itself_nor_against() -> None:
    others = ("acb", "bac", "ca", "cba")
    assert taught(*others).joints("f", longs("ac"), True) == (0, 1, 2)
    assert taught(*others, "ac").joints("f", longs("ac"), True) == (0, 1, 2)


def test_borders_found_from_both_ends_rise() -> None:
    assert taught("edbfac", "dcg", "dbg", "fda").joints("f", longs("cadb"), True) == (0, 1, 2, 4)


def test_what_a_string_says_twice_is_remembered_when_the_string_has_gone() -> None:
    def asked(*before: str) -> tuple[int, ...]:
        store = EdgeStore(max_texts=12)
        for names in (*before, "qa", "ar", "sq"):
            store.observe("f", longs(names), True)
        store.check_invariants()
        return store.joints("f", longs("aq"), True)

    assert asked() == (0, 1, 2)
    assert asked("aabbccddeeff", "gghhiijjkkll") == ()
    assert asked("aabbccddeeff", "gghhiijjkkll", "aamm") == (), "met twice again: it goes last"
    assert asked("aabbccddeeff", "gghhiijjkkll", "mm") == (0, 1, 2), "one more than may be remembered"


def test_together_from_either_side_is_together() -> None:
    """``b`` stands behind ``a`` in few of the strings with ``a``, but in most of those with ``b``."""
    apart = ["".join(names) for names in itertools.permutations("acde")]
    others = ("cbe", "ebc", *apart)
    assert taught(*others).joints("f", longs("cabd"), True) == (0, 1, 2, 3, 4)
    together = [f"{x}ab{y}" for x, y in itertools.permutations("cde", 2)]
    assert taught(*together, *others).joints("f", longs("cabd"), True) == (0, 1, 3, 4)


def test_without_a_frame_at_the_ends() -> None:
    others = ["".join(names) for names in itertools.permutations("abcd") if names != ("d", "b", "c", "a")]
    store = taught(*others, framed=False)
    assert store.joints("f", longs("dbca"), False) == (0, 1, 2, 3, 4)


def test_a_varying_frame_hides_what_follows() -> None:
    """The second text of the frame is one of several: it stands where it always stands."""
    store = taught("xrabc", "xsbca", "xtcab", "xracb", framed=False)
    assert store.joints("f", longs("xsbac"), False) == ()


def test_too_many_texts_are_left_alone() -> None:
    store = EdgeStore()
    texts = [long(str(i)) for i in range(MAX_TEXTS + 1)]
    store.observe("f", texts, True)
    assert len(store) == 0
    assert store.joints("f", texts, True) == ()


def test_the_oldest_string_goes_first() -> None:
    store = EdgeStore(max_texts=8)
    for names in ("abcd", "bcda", "abcd", "dcab"):
        store.observe("f", longs(names), True)
        store.check_invariants()
    assert len(store) == 8
    assert store.joints("f", longs("acbd"), True) == ()  # what is left are two of them
    store.observe("f", longs("abcdefghi"), True)  # more than the store may hold
    assert len(store) == 8


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_bounds_are_positive(bounds: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        EdgeStore(*bounds)


class Corpus:
    """Documents of paragraphs, some of which are asked for in each request."""

    def __init__(self, documents: Sequence[Sequence[str]], seed: int) -> None:
        self._documents = documents
        self._random = random.Random(seed)
        self._weights = [1 / (1 + i) for i in range(len(documents))]

    def request(self, count: int, in_order: bool) -> tuple[list[str], set[int]]:
        """The paragraphs of ``count`` documents, and the places of their borders."""
        chosen: list[int] = []
        while len(chosen) < count:
            (document,) = self._random.choices(range(len(self._documents)), self._weights)
            chosen += [document] if document not in chosen else []
        texts: list[str] = []
        borders = {0}
        for document in sorted(chosen) if in_order else chosen:
            texts += self._documents[document]
            borders.add(len(texts))
        return texts, borders


def played(documents: Sequence[Sequence[str]], framed: bool = True, in_order: bool = False) -> tuple[int, int]:
    """How many joints 400 requests prove, and how many of these are no borders of documents."""
    corpus, store = Corpus(documents, seed=7), EdgeStore()
    proved = wrong = 0
    frame = [] if framed else [long("frame")]
    for _ in range(400):
        texts, borders = corpus.request(5, in_order)
        joints = store.joints("f", [*frame, *texts], framed)
        proved += len(joints)
        wrong += sum(joint - len(frame) not in borders for joint in joints)
        store.observe("f", [*frame, *texts], framed)
    store.check_invariants()
    return proved, wrong


PLAIN = [[long(f"{i}.{j}") for j in range(1 + i % 3)] for i in range(30)]
SHARED = [long(f"shared {i}") for i in range(6)]
BOILERPLATE = [[long(f"{i} a"), SHARED[i % 6], SHARED[(i + 1 + i // 6) % 6], long(f"{i} b")] for i in range(30)]
HEADED = [[SHARED[i % 6], SHARED[(i + 1 + i // 6) % 6], long(f"{i}")] for i in range(30)]
RUNNING = [long(f"running {i}") for i in range(40)]
OVERLAPPING = [RUNNING[i : i + 2] for i in range(39)]
WIDELY_OVERLAPPING = [RUNNING[i : i + 3] for i in range(38)]
SINGLE = [[long(f"{i}")] for i in range(30)]


@pytest.mark.no_cover
@pytest.mark.parametrize("framed", [True, False])
def test_documents_of_one_to_three_paragraphs(framed: bool) -> None:
    proved, wrong = played(PLAIN, framed)
    assert wrong == 0
    assert proved > 1500  # of 2,400 that there are


@pytest.mark.no_cover
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize(
    "documents", [BOILERPLATE, HEADED, OVERLAPPING, WIDELY_OVERLAPPING], ids=["inside", "head", "half", "two thirds"]
)
def test_boilerplate_and_overlap_never_cut_a_document(documents: Sequence[Sequence[str]], framed: bool) -> None:
    assert played(documents, framed)[1] == 0


@pytest.mark.no_cover
@pytest.mark.parametrize("framed", [True, False])
def test_an_order_that_is_always_kept_may_mean_something(framed: bool) -> None:
    assert played(SINGLE, framed)[0] > 1500
    assert played(SINGLE, framed, in_order=True)[0] == 0


Seen = tuple[tuple[str, ...], bool]


def is_unit(run: tuple[str, ...], now: Seen, others: Sequence[Seen], shared: set[str]) -> bool:
    """The rules of the module, read from the strings themselves."""
    if any(text in shared or now[0].count(text) > 1 for text in (run[0], run[-1])):
        return False
    met = [
        (texts, framed, at)
        for texts, framed in (now, *others)
        for at in range(len(texts) - len(run) + 1)
        if texts[at : at + len(run)] == run
    ]
    sides: list[tuple[str | None, str | None]] = []
    fronts: set[str] = set()
    backs: set[str] = set()
    for texts, framed, at in met:
        outside = None if framed else "edge"
        end = at + len(run)
        sides.append((texts[at - 1] if at else outside, texts[end] if end < len(texts) else outside))
        fronts |= set(texts[:at])
        backs |= set(texts[end:])
    apart = any(
        all(differ(*pair) for pair in itertools.combinations((sides[0], *two), 2))
        for two in itertools.combinations(sides[1:], 2)
    )
    twice = {text for text in now[0] if now[0].count(text) > 1}
    return apart and bool((fronts & backs) - shared - twice)


def differ(one: tuple[str | None, str | None], other: tuple[str | None, str | None]) -> bool:
    """Whether two meetings differ on both sides; a marked edge differs from everything."""
    return all(a is None or a != b for a, b in zip(one, other, strict=True))


def orders(size: int) -> st.SearchStrategy[str]:
    """Any order of so many letters: one choice, where ``st.permutations`` makes one for each letter."""
    return st.sampled_from(["".join(order) for order in itertools.permutations(LETTERS[:size])])


class EdgeMachine(RuleBasedStateMachine):
    """The store against the strings themselves, kept in a list."""

    @initialize(max_texts=st.sampled_from([12, 60, 10_000]))
    def start(self, max_texts: int) -> None:
        self.store = EdgeStore(max_texts, max_meetings=10_000)
        self.max_texts = max_texts
        self.strings: list[Seen] = []
        self.shared: set[str] = set()

    @rule(names=orders(8), size=st.integers(1, 6), framed=st.booleans())
    def observe_different(self, names: str, size: int, framed: bool) -> None:
        self._observe(names[:size], framed)

    @rule(others=st.lists(orders(5), min_size=3, max_size=8))
    def observe_many(self, others: list[str]) -> None:
        for names in others:
            self._observe(names, True)

    @rule(names=st.text(LETTERS, min_size=1, max_size=5), framed=st.booleans())
    def observe_any(self, names: str, framed: bool) -> None:
        self._observe(names, framed)

    def _observe(self, names: str, framed: bool) -> None:
        string = (tuple(longs(names)), framed)
        self.store.observe("f", string[0], framed)
        if string in self.strings:
            self.strings.remove(string)
            self.strings.append(string)
            return
        self.strings.append(string)
        self.shared |= {text for text in string[0] if string[0].count(text) > 1}
        while sum(len(texts) for texts, _ in self.strings) > self.max_texts:
            del self.strings[0]

    @rule(names=orders(6), size=st.integers(2, 6))
    def ask_framed(self, names: str, size: int) -> None:
        now = (tuple(longs(names[:size])), True)
        others = [string for string in reversed(self.strings) if string != now]
        joints = self.store.joints("f", now[0], True)
        assert list(joints) == sorted(set(joints))
        assert joints == () or (joints[0], joints[-1]) == (0, size)
        for joint in joints[1:-1]:
            assert self._tiled(now, others, 0, joint, size) or self._tiled(now, others, joint, size, 0)

    def _tiled(self, now: Seen, others: Sequence[Seen], start: int, end: int, across: int) -> bool:
        """Whether units tile the texts from an outer edge to a joint, and one stands on the other side of it."""
        reached = {start}
        for stop in range(start + 1, end + 1):
            if any(is_unit(now[0][begin:stop], now, others, self.shared) for begin in reached if begin < stop):
                reached.add(stop)
        beyond = [now[0][end:stop] for stop in range(end + 1, across + 1)] or [
            now[0][begin:start] for begin in range(start)
        ]
        return end in reached and any(is_unit(run, now, others, self.shared) for run in beyond)

    @rule(names=st.text(LETTERS, max_size=8), framed=st.booleans())
    def ask_anything(self, names: str, framed: bool) -> None:
        joints = self.store.joints("f", longs(names), framed)
        assert len(joints) != 1
        assert all(0 <= joint <= len(names) for joint in joints)
        assert joints == self.store.joints("f", longs(names), framed)

    @invariant()
    def holds(self) -> None:
        self.store.check_invariants()
        assert len(self.store) == sum(len(texts) for texts, _ in self.strings)


TestEdgeMachine = EdgeMachine.TestCase
TestEdgeMachine.settings = settings(max_examples=50, stateful_step_count=40)


def test_a_unit_has_a_bound() -> None:
    many = [[long(f"{i}.{j}") for j in range(MAX_RUN + 1)] for i in range(5)]
    corpus, store = Corpus(many, seed=3), EdgeStore()
    for _ in range(50):
        texts, _ = corpus.request(3, in_order=False)
        assert store.joints("f", texts, True) == ()
        store.observe("f", texts, True)


def test_a_small_corpus_is_known_soon() -> None:
    """40 documents, 4 or 5 at a time: most of those of a request may move before the 100th."""
    rng = random.Random(4)
    store = EdgeStore()
    shares = []
    for _ in range(100):
        chosen: list[int] = []
        while len(chosen) < rng.choice((4, 5)):
            (document,) = rng.choices(range(40), [1 / (1 + i) for i in range(40)])
            chosen += [document] if document not in chosen else []
        texts = ["The frame of the application.", *(long(f"document {i} ") for i in chosen)]
        shares.append(max(0, len(store.joints("f", texts, False)) - 1) / len(chosen))
        store.observe("f", texts, False)
    assert sum(shares[25:50]) / 25 > 0.2
    assert sum(shares[50:]) / 50 > 0.6
