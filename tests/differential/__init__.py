"""The proxy judged by what reaches the engine, by an oracle that knows the documented wording and nothing of our code."""
