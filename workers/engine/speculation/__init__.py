"""Speculation: tokens are guessed, computed in one step, and kept where sampling agrees."""
