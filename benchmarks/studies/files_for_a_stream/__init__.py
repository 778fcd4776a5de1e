"""Counts the files that a request runs through: each is one that a newcomer has to know."""
