"""Clients of the Responses API that are no dependencies of Quire."""
