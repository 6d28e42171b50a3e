"""Engines (floor 4): those that this package can start itself, and what any engine tells of its KV cache.

Each optional dependency stays in one file.
"""
