"""The proxy judged by what reaches the engine, by an oracle that knows documented words and nothing of our code."""
