from __future__ import annotations

import pytest

from prefixpilot.core import BlockId, RequestId
from prefixpilot.errors import InvalidRequestError, InvariantError
from prefixpilot.index import ContextIndex, check_tree


def insert(index: ContextIndex, name: str, *blocks: BlockId) -> None:
    index.insert(blocks, (1,) * len(blocks), RequestId(name))


def test_a_context_that_ends_at_an_internal_node_gets_a_leaf_of_its_own() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2, 3)
    insert(index, "b", 1, 2, 4)
    insert(index, "c", 1, 2)
    assert index.paths() == {"a": (0, 0), "b": (0, 1), "c": (0, 2)}
    check_tree(index)


def test_a_context_that_goes_on_from_a_leaf_leaves_it_a_leaf() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2)
    insert(index, "b", 1, 2, 3)
    assert index.paths() == {"a": (0, 0), "b": (0, 1)}
    assert index.total_tokens == 3
    check_tree(index)


def test_a_split_takes_the_place_of_the_node() -> None:
    index = ContextIndex()
    for name, blocks in (("a", (1, 2)), ("b", (5, 6)), ("c", (1, 3))):
        insert(index, name, *blocks)
    assert index.paths() == {"a": (0, 0), "b": (1,), "c": (0, 1)}


def test_a_node_left_with_one_child_is_replaced_by_it() -> None:
    index = ContextIndex()
    for name, blocks in (("a", (1, 2)), ("b", (1, 3)), ("c", (4,))):
        insert(index, name, *blocks)
    index.evict([RequestId("a")])
    assert index.paths() == {"b": (0,), "c": (1,)}
    assert index.total_tokens == 3
    check_tree(index)


def test_a_leaf_stays_until_its_last_request_goes() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2)
    insert(index, "b", 1, 2)
    assert len(index.leaves) == 1 and len(index) == 2
    index.evict([RequestId("a")])
    assert index.leaf(RequestId("b")).frequency == 2


def test_ten_thousand_siblings_are_searched_by_their_first_block() -> None:
    index = ContextIndex()
    for n in range(10_000):
        insert(index, str(n), n, 10_000)
    assert index.match_prefix([10_000, 77, 5_000]).prefix == (77, 10_000)
    assert index.path(index.leaf(RequestId("9999"))) == (9999,)


def test_search_stops_where_all_children_are_equally_distant() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2)
    insert(index, "b", 1, 3)
    assert index.search([1, 9]).node is index.traverse([0])
    assert index.search([7]).node is index.root


def test_a_single_child_is_entered_if_it_overlaps() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2)
    assert index.search([2, 9]).node is index.leaf(RequestId("a"))


@pytest.mark.parametrize(
    ("blocks", "tokens", "name", "field"),
    [
        ((), (), "new", "blocks"),
        ((1, 1), (1, 1), "new", "blocks"),
        ((1, 2), (1,), "new", "tokens"),
        ((2,), (1,), "live", "request_id"),
    ],
)
def test_what_cannot_be_inserted(blocks: tuple[int, ...], tokens: tuple[int, ...], name: str, field: str) -> None:
    index = ContextIndex()
    insert(index, "live", 1)
    with pytest.raises(InvalidRequestError) as caught:
        index.insert(blocks, tokens, RequestId(name))
    assert caught.value.field == field
    check_tree(index)
    assert len(index) == 1


def test_what_is_not_there_is_named() -> None:
    index = ContextIndex()
    insert(index, "a", 1)
    with pytest.raises(InvalidRequestError, match="'b' is not live"):
        index.leaf(RequestId("b"))
    with pytest.raises(InvalidRequestError, match=r"path\[1\]"):
        index.traverse([0, 3])


def test_check_tree_sees_a_broken_tree() -> None:
    index = ContextIndex()
    insert(index, "a", 1, 2)
    insert(index, "b", 1, 3)
    index.leaf(RequestId("a")).blocks = (4, 2)
    with pytest.raises(InvariantError):
        check_tree(index)
