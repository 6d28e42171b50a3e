"""What the engine's cache holds: its events followed, predictions checked against its own counts, the index corrected."""
