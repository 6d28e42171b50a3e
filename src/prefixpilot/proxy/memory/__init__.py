"""What is remembered of conversations, so that what was sent is sent again unchanged."""
