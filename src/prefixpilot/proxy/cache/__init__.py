"""What the engine's cache holds: its events followed, predictions checked against its counts, the index corrected."""
