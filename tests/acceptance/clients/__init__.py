"""Clients of the API that are no dependencies of Quire."""
