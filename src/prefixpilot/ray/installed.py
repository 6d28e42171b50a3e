"""Ray, if it is installed: the other modules of this room take it from here."""

from __future__ import annotations

from prefixpilot.errors import MissingExtraError

try:
    import ray
    from ray import serve
except ImportError:
    raise MissingExtraError("ray", 'pip install "prefixpilot[ray]"') from None

__all__ = ["ray", "serve"]
