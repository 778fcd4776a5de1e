"""Receipts of lines: what computed an answer, and whether it could have."""
