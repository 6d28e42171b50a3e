"""Distance between contexts (paper Eq. 1): a readable specification, and a fast pairwise version proved equal to it.

``pairwise`` needs NumPy and is imported where it is used.
"""

from prefixpilot.distance.scalar import Overlap, distance, overlap

__all__ = ["Overlap", "distance", "overlap"]
