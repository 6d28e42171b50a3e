"""Engines that this package can start itself (floor 4). Each optional dependency stays in one file."""
