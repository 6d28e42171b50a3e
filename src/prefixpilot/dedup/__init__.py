"""De-duplication (Algorithm 3): whole blocks, and long runs of text inside larger texts (floor 2). Pure."""

from prefixpilot.dedup.blocks import deduplicate

__all__ = ["deduplicate"]
