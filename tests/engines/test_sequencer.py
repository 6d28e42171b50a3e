"""Order of an engine's batches: gaps, replays, lost windows, restarts; and a model of publisher and network."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.engines.base import Continuity
from prefixpilot.engines.sequencer import OVERTAKEN, Action, Anew, Ask, Deliver, Sequencer

WHOLE, CATCHING_UP, BROKEN = Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN


def batch(number: int, life: int = 0) -> bytes:
    return f"{life}:{number}".encode()


def delivered(actions: list[Action]) -> list[int]:
    return [action.sequence for action in actions if isinstance(action, Deliver)]


def asked(actions: list[Action]) -> list[int]:
    return [action.start for action in actions if isinstance(action, Ask)]


def caught_up(count: int) -> Sequencer:
    """One that has been replayed ``count`` batches at its start."""
    order = Sequencer(replay=True)
    assert asked(order.started()) == [0]
    for number in range(count):
        assert delivered(order.replayed(number, batch(number))) == [number]
    assert order.replay_ended() == []
    assert order.continuity is WHOLE
    return order


def test_a_late_subscriber_asks_from_zero_and_live_batches_wait_for_the_replay() -> None:
    order = Sequencer(replay=True)
    assert asked(order.started()) == [0]
    assert order.continuity is CATCHING_UP
    assert order.live(2, batch(2)) == []
    assert [delivered(order.replayed(n, batch(n))) for n in range(3)] == [[0], [1], [2]]
    assert order.live(3, batch(3)) == []
    assert delivered(order.replay_ended()) == [3]
    assert (order.continuity, order.lost, order.gaps) == (WHOLE, 0, 0)


def test_a_gap_is_asked_for_and_filled_in_order() -> None:
    order = caught_up(3)
    assert asked(order.live(5, batch(5))) == [3]
    assert order.continuity is CATCHING_UP
    assert [delivered(order.replayed(n, batch(n))) for n in (3, 4, 5)] == [[3], [4], [5]]
    assert order.replay_ended() == []
    assert delivered(order.live(6, batch(6))) == [6]
    assert (order.continuity, order.gaps, order.lost) == (WHOLE, 1, 0)


def test_a_window_that_is_lost_is_counted_until_the_cache_is_cleared() -> None:
    order = caught_up(2)
    order.live(10, batch(10))
    assert delivered(order.replayed(7, batch(7))) == [7]
    assert (order.continuity, order.lost) == (BROKEN, 5)
    for number in (8, 9, 10):
        order.replayed(number, batch(number))
    order.replay_ended()
    assert order.continuity is BROKEN
    assert delivered(order.live(11, batch(11))) == [11]
    order.cleared()
    assert order.continuity is WHOLE


def test_a_late_subscriber_whose_window_is_lost_is_broken() -> None:
    order = Sequencer(replay=True)
    order.started()
    assert delivered(order.replayed(40, batch(40))) == [40]
    order.replay_ended()
    assert (order.continuity, order.lost) == (BROKEN, 40)


def test_gaps_are_counted_where_nobody_can_be_asked_too() -> None:
    order = Sequencer(replay=False)
    assert order.started() == []
    order.connected()
    for number in (0, 3, 4, 9):
        assert delivered(order.live(number, batch(number))) == [number]
    assert (order.gaps, order.lost, order.continuity) == (2, 6, BROKEN)


def test_one_gap_is_counted_once_however_it_ends() -> None:
    order = caught_up(2)
    assert asked(order.live(6, batch(6))) == [2]
    assert delivered(order.replay_failed()) == [6]
    assert (order.gaps, order.lost) == (1, 4)
    late = Sequencer(replay=True)
    late.started()
    late.replayed(40, batch(40))
    assert (late.gaps, late.lost) == (1, 40)


def test_a_live_batch_that_a_replay_has_overtaken_is_dropped() -> None:
    order = caught_up(4)
    assert order.live(2, batch(2)) == []
    assert order.live(3, batch(3)) == []
    assert delivered(order.live(4, batch(4))) == [4]
    assert (order.continuity, order.restarts) == (WHOLE, 0)


def test_a_number_that_falls_is_a_restart() -> None:
    order = caught_up(4)
    order.live(4, batch(4))
    (action,) = order.live(0, batch(0, life=1))
    assert action == Deliver(0, batch(0, life=1), fresh=True, replayed=False)
    assert (order.continuity, order.restarts, order.lost) == (WHOLE, 1, 0)
    assert order.live(1, batch(1, life=1)) == [Deliver(1, batch(1, life=1), fresh=False, replayed=False)]


def test_other_bytes_under_a_replayed_number_are_a_restart() -> None:
    order = caught_up(4)
    assert asked(order.live(1, batch(1, life=1))) == [0]
    assert order.replayed(0, batch(0, life=1)) == [Deliver(0, batch(0, life=1), fresh=True, replayed=True)]
    assert delivered(order.replayed(1, batch(1, life=1))) == [1]
    assert order.replay_ended() == []
    assert (order.continuity, order.restarts) == (WHOLE, 1)


def test_a_restart_while_a_replay_runs_begins_the_replay_anew() -> None:
    order = caught_up(3)
    order.live(7, batch(7))
    assert asked(order.live(1, batch(1, life=1))) == [0]
    assert order.waiting == 1
    order.replayed(0, batch(0, life=1))
    order.replayed(1, batch(1, life=1))
    assert order.replay_ended() == []
    assert (order.continuity, order.expected) == (WHOLE, 2)


def test_a_restart_that_a_replay_of_the_old_engine_hides_is_seen_at_its_end() -> None:
    order = Sequencer(replay=True)
    order.started()
    for number in range(3):
        order.replayed(number, batch(number))
    assert order.live(1, batch(1, life=1)) == []
    for number in range(3, 5):
        order.replayed(number, batch(number))
    assert asked(order.replay_ended()) == [0]
    assert (order.restarts, order.continuity) == (1, CATCHING_UP)
    assert order.replayed(0, batch(0, life=1)) == [Deliver(0, batch(0, life=1), fresh=True, replayed=True)]


def test_how_many_replayed_batches_are_remembered_is_bounded() -> None:
    order = Sequencer(replay=True)
    order.started()
    for number in range(OVERTAKEN + 1):
        order.replayed(number, b"")
    order.replay_ended()
    assert order.live(1, b"") == []
    assert asked(order.live(2, b"?")) == [0]  # other bytes than were replayed


def test_after_a_lost_connection_the_last_batch_tells_whether_it_is_the_same_engine() -> None:
    order = caught_up(3)
    order.disconnected()
    assert order.continuity is CATCHING_UP
    assert asked(order.connected()) == [2]
    assert order.replayed(2, batch(2)) == []
    assert delivered(order.replayed(3, batch(3))) == [3]
    assert order.replay_ended() == []
    assert (order.continuity, order.restarts) == (WHOLE, 0)


def test_after_a_lost_connection_other_bytes_or_none_are_a_new_engine() -> None:
    for answer in (batch(2, life=1), None):
        order = caught_up(3)
        order.disconnected()
        order.connected()
        actions = order.replay_ended() if answer is None else order.replayed(2, answer)
        assert asked(actions) == [0]
        assert order.restarts == 1
        assert order.replayed(0, batch(0, life=1)) == [Deliver(0, batch(0, life=1), fresh=True, replayed=True)]


def test_a_new_engine_is_told_before_it_has_published_anything() -> None:
    order = caught_up(3)
    order.disconnected()
    order.connected()
    actions = order.replay_ended()
    assert isinstance(actions[0], Anew) and asked(actions) == [0]
    assert order.continuity is CATCHING_UP
    assert order.replay_ended() == [] and order.continuity is WHOLE  # it has begun, and holds nothing
    (first,) = order.live(0, batch(0, life=1))
    assert first == Deliver(0, batch(0, life=1), fresh=True, replayed=False)


def test_a_live_batch_after_a_lost_connection_waits_until_it_is_known_whose_it_is() -> None:
    order = caught_up(1)
    order.disconnected()
    assert asked(order.live(1, batch(1, life=1))) == [0]
    assert asked(order.replayed(0, batch(0, life=1))) == [0]
    assert order.replayed(0, batch(0, life=1)) == [Deliver(0, batch(0, life=1), fresh=True, replayed=True)]


def test_a_check_finds_what_was_not_published_to_us_and_nothing_else_changes() -> None:
    order = caught_up(2)
    assert (order.heard, asked(order.check())) == (False, [2])
    assert (order.continuity, order.check()) == (WHOLE, [])
    assert delivered(order.replayed(2, batch(2))) == [2]
    order.replay_ended()
    order.live(3, batch(3))
    assert (order.heard, order.continuity, order.gaps) == (True, WHOLE, 0)


def test_a_connection_that_was_never_lost_asks_nothing() -> None:
    order = caught_up(2)
    assert order.connected() == []


def test_without_replays_a_gap_is_lost_at_once() -> None:
    order = Sequencer(replay=False)
    assert order.started() == []
    assert order.continuity is BROKEN
    assert delivered(order.live(0, batch(0))) == [0]
    assert order.continuity is WHOLE
    assert delivered(order.live(3, batch(3))) == [3]
    assert (order.continuity, order.lost) == (BROKEN, 2)


def test_without_replays_a_restart_is_seen_by_its_number() -> None:
    order = Sequencer(replay=False)
    order.live(0, batch(0))
    order.live(1, batch(1))
    order.disconnected()
    assert order.continuity is CATCHING_UP
    assert order.connected() == []
    assert order.live(0, batch(0, life=1)) == [Deliver(0, batch(0, life=1), fresh=True, replayed=False)]
    assert order.continuity is WHOLE


def test_a_replay_that_never_answers_is_given_up_and_what_waits_is_handed_on() -> None:
    order = caught_up(2)
    order.live(5, batch(5))
    assert delivered(order.replay_failed()) == [5]
    assert (order.continuity, order.lost) == (BROKEN, 3)


def test_a_replay_that_stops_half_way_is_asked_again() -> None:
    order = caught_up(2)
    order.live(5, batch(5))
    order.replayed(2, batch(2))
    assert asked(order.replay_failed()) == [3]
    assert asked(order.replayed(4, batch(4))) == []  # nothing since it was asked: that much is lost
    assert order.lost == 1


def test_a_hole_in_a_replay_is_asked_again() -> None:
    order = caught_up(2)
    order.live(6, batch(6))
    order.replayed(2, batch(2))
    assert asked(order.replayed(4, batch(4))) == [3]
    assert order.lost == 0


def test_a_replay_without_an_answer_and_without_live_batches_is_asked_again() -> None:
    order = Sequencer(replay=True)
    order.started()
    assert asked(order.replay_failed()) == [0]
    order = caught_up(3)
    order.disconnected()
    order.connected()
    assert asked(order.replay_failed()) == [2]


def test_what_waits_is_bounded_and_what_did_not_fit_is_asked_for() -> None:
    order = Sequencer(replay=True, waiting_batches=3, waiting_bytes=100)
    order.started()
    for number in range(10):
        order.live(number, batch(number))
    assert order.waiting == 3
    assert delivered(order.replay_ended()) == [0, 1, 2]
    assert asked(order.live(10, batch(10))) == [3]


def test_what_waits_is_bounded_in_bytes() -> None:
    order = Sequencer(replay=True, waiting_batches=100, waiting_bytes=10)
    order.started()
    for number in range(5):
        order.live(number, b"1234")
    assert order.waiting == 2


def test_an_unreadable_batch_breaks_the_picture() -> None:
    order = caught_up(1)
    order.live(1, b"?")
    order.unreadable()
    assert (order.continuity, order.lost) == (BROKEN, 1)


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    order = caught_up(2)
    assert (order.replayed(2, batch(2)), order.replay_ended(), order.replay_failed()) == ([], [], [])
    assert order.expected == 2


def test_a_doubt_ends_with_what_comes_or_with_the_word_that_there_is_nothing() -> None:
    order = caught_up(2)
    assert asked(order.doubted()) == [1] and order.continuity is CATCHING_UP
    assert order.doubted() == []
    assert order.replayed(1, batch(1)) == []
    assert order.replay_ended() == [] and order.continuity is WHOLE
    assert asked(order.doubted()) == [1]
    order.replayed(1, batch(1))
    assert delivered(order.replayed(2, batch(2))) == [2]
    assert order.replay_ended() == [] and (order.continuity, order.restarts) == (WHOLE, 0)


def test_a_doubt_without_replays_ends_with_the_next_batch() -> None:
    order = Sequencer(replay=False)
    order.live(0, batch(0))
    assert order.doubted() == [] and order.continuity is CATCHING_UP
    assert delivered(order.live(1, batch(1))) == [1]
    assert order.continuity is WHOLE


def test_a_doubt_finds_an_engine_that_has_begun_anew() -> None:
    order = caught_up(3)
    order.doubted()
    actions = order.replay_ended()
    assert isinstance(actions[0], Anew) and asked(actions) == [0]


class EngineAndNetwork(RuleBasedStateMachine):
    """An engine with a bounded memory, a network that loses live batches and connections, and one sequencer.

    What must hold: batches of one engine's life come in order and once; one is left out only if it was lost, and then
    it is counted and the picture is BROKEN; a new life is told before its first batch; and once the network is quiet,
    everything that the engine still has is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order = Sequencer(replay=True, waiting_batches=4)
        self.life = 0
        self.published = 0
        self.window = 6
        self.channel: list[tuple[int, bytes]] = []
        self.question: int | None = None
        self.answers: list[tuple[int, bytes]] | None = None
        self.seen: list[tuple[int, int]] = []
        self.told: list[int] = []
        self.unconnected = False
        self.skipped = 0
        self.act(self.order.started())

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self.question, self.answers = action.start, None
            elif isinstance(action, Deliver):
                self.take(action)

    def take(self, action: Deliver) -> None:
        life, number = map(int, action.payload.split(b":"))
        assert number == action.sequence
        before = self.seen[-1] if self.seen else (life, -1)
        assert life >= before[0]
        assert action.fresh or life == before[0]
        if action.fresh:
            assert life > before[0] or number > before[1]  # the engine's memory did not reach back to ``before``
            before, self.told = (life, -1), []
        assert number > before[1]
        self.skipped += number - before[1] - 1
        self.seen.append((life, number))
        self.told.append(number)
        assert self.skipped == self.order.lost or self.order.asking

    @rule(arrives=st.booleans())
    def publish(self, arrives: bool) -> None:
        if arrives and not self.unconnected:
            self.channel.append((self.published, batch(self.published, self.life)))
        self.published += 1

    @rule()
    def arrive(self) -> None:
        if self.channel:
            self.act(self.order.live(*self.channel.pop(0)))

    @rule()
    def engine_sees_the_question(self) -> None:
        if self.question is not None and not self.unconnected:
            start, self.question = self.question, None
            kept = range(max(start, self.published - self.window), self.published)
            self.answers = [(number, batch(number, self.life)) for number in kept]

    @rule(count=st.integers(1, 8))
    def answers_arrive(self, count: int) -> None:
        for _ in range(count):
            if self.answers is None:
                return
            if self.answers:
                number, payload = self.answers.pop(0)
                self.act(self.order.replayed(number, payload))
            else:
                self.answers = None
                self.act(self.order.replay_ended())

    @rule()
    def is_checked(self) -> None:
        before = self.order.continuity
        self.act(self.order.check())
        assert self.order.continuity is before

    @rule()
    def is_doubted(self) -> None:
        self.act(self.order.doubted())
        assert self.order.continuity is not WHOLE or self.order.asking

    @rule()
    def connection_breaks(self) -> None:
        if not self.unconnected:
            self.unconnected = True
            self.drain()
            self.order.disconnected()

    @rule()
    def connection_comes_back(self) -> None:
        if self.unconnected:
            self.unconnected = False
            self.act(self.order.connected())

    @rule()
    def engine_restarts(self) -> None:
        self.connection_breaks()
        self.life, self.published, self.answers = self.life + 1, 0, None

    @rule()
    def everything_settles(self) -> None:
        """The network is quiet: all that the engine keeps must have come."""
        self.connection_comes_back()
        self.channel.append((self.published, batch(self.published, self.life)))
        self.published += 1
        for _ in range(20):
            self.drain()
            self.engine_sees_the_question()
            self.answers_arrive(20)
            if self.question is None and self.answers is None:
                self.act(self.order.replay_failed())
            if not self.order.asking and not self.channel:
                break
        assert not self.order.asking
        assert self.order.waiting == 0
        assert self.seen[-1] == (self.life, self.published - 1)
        assert (self.order.continuity is BROKEN) == (self.told != list(range(self.published)))

    def drain(self) -> None:
        while self.channel:
            self.arrive()

    @invariant()
    def is_bounded(self) -> None:
        assert self.order.waiting <= 4


TestEngineAndNetwork = EngineAndNetwork.TestCase
TestEngineAndNetwork.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
