"""Arms side by side on an engine: the same requests, from a cold cache, counted by the engine, timed by the client."""
