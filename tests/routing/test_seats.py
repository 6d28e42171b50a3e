"""Seats: a name keeps its index, a new one takes the lowest that is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.routing import Change, Seats

names = st.sets(st.sampled_from("abcdefg"))


def test_who_comes_in_the_place_of_another_has_its_index() -> None:
    seats = Seats()
    assert seats.update(["x", "y", "z"]) == Change((), (0, 1, 2))
    assert seats.update(["x", "z"]) == Change((1,), ())
    assert list(seats.names) == ["x", None, "z"]
    assert seats.update(["x", "z", "new"]) == Change((), (1,))
    assert list(seats.names) == ["x", "new", "z"]


@given(st.lists(names, max_size=12))
def test_names_keep_their_index_and_seats_are_no_more_than_were_needed(updates: list[set[str]]) -> None:
    seats, most = Seats(), 0
    for wanted in updates:
        before = seats.names
        change = seats.update(wanted)
        most = max(most, len(wanted))
        now = [name for name in seats.names if name is not None]
        assert sorted(now) == sorted(wanted)
        assert len(seats.names) <= most
        for name in wanted & set(before):
            assert seats.names.index(name) == before.index(name)
        assert change.emptied == tuple(i for i, name in enumerate(before) if name is not None and name not in wanted)
        assert {seats.names[i] for i in change.taken} == wanted - set(before)
