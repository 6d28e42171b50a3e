"""Whether answers stay as good: the same questions asked in several ways, scored against reference answers."""
