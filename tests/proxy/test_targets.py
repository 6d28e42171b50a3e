"""What a request target means, however it is written."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.apis import API_OF_PATH
from prefixpilot.proxy.intake import api_near
from prefixpilot.proxy.wire.targets import plain_path

SEGMENTS = st.lists(st.sampled_from(["v1", "chat", "Completions", "x y", "%", "é"]), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        (b"", b"/"),
        (b"/..", b"/"),
        (b"/a/../../b", b"/b"),
        (b"/A;x=1/b;y#z", b"/a/b"),
        (b"a/b", b"/a/b"),
        (b"/a%2Fb%3fc", b"/a/b"),
        (b"/%", b"/%"),
    ],
)
def test_plain_paths(path: bytes, plain: bytes) -> None:
    assert plain_path(path) == plain


@given(SEGMENTS, st.integers(0, 3), st.data())
def test_ways_to_write_a_path_are_one(segments: list[str], times: int, data: st.DataObject) -> None:
    noise = st.sampled_from(["/", "//", "/./", "/x/../", "\\", ";a/"])
    written = "".join(data.draw(noise) + quote(segment) for segment in segments)
    if written.startswith(";"):
        written = "/" + written
    for _ in range(times):
        written = quote(written)
    assert plain_path(written.encode()) == plain_path(("/" + "/".join(map(quote, segments))).encode())


@given(st.binary(max_size=60))
def test_any_bytes_have_one_plain_path(path: bytes) -> None:
    plain = plain_path(path)
    assert plain.startswith(b"/") and b"//" not in plain and plain == plain.lower()


@pytest.mark.parametrize("path", sorted(API_OF_PATH))
def test_each_path_of_an_api_is_near_to_it(path: bytes) -> None:
    assert api_near(path) is API_OF_PATH[path]
    assert api_near(path.upper() + b"/#") is API_OF_PATH[path]


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v1/messages/batches", b"/v1/chat/completions/..", b"/"])
def test_others_are_near_to_none(path: bytes) -> None:
    assert api_near(path) is None
