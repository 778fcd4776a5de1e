"""Checks that a forward pass over pages computes what the model itself does."""
