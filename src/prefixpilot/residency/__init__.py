"""What the engine's cache holds now: mirrored from its events, or estimated; and what of ours still lies in it."""
