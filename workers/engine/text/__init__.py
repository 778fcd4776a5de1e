"""Tokens become text, and text ends at a stop. No tensors."""
