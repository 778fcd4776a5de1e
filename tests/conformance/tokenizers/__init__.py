"""Tiny random models over the whole vocabularies of families that people run."""
