"""Reads the files of a checkpoint as a transformers model, or refuses them clearly."""
