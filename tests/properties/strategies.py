"""Hypothesis strategies that several property tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from prefixpilot.core import BlockId

block_ids: st.SearchStrategy[BlockId] = st.integers(0, 9)

contexts: st.SearchStrategy[list[BlockId]] = st.lists(block_ids, min_size=1, max_size=6, unique=True)
"""Distinct blocks from a small universe, so that contexts overlap."""

retrieved: st.SearchStrategy[list[BlockId]] = st.lists(block_ids, max_size=7)
"""As a retriever may give them: perhaps none, perhaps some twice."""
