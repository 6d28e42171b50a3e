"""What the engine's cache holds: events followed, predictions checked against the engine's counts, the index corrected."""
