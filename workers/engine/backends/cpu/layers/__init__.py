"""Layers of a model as the C library computes them: compiled, packed, rounded."""
