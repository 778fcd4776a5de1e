"""Checkpoints whose files hold rounded weights: one module for each format, and what reads them."""
