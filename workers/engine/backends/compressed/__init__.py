"""Attention to windows of tokens that have one key together, over pages and states."""
