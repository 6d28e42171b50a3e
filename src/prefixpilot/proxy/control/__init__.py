"""Do no harm: whether treatment pays on a route, measured against requests that were left as they came."""
