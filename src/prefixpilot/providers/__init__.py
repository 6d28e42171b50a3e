"""What hosted providers offer for prefix caching: their limits, cache marks, cache keys and lifetimes. Pure."""
