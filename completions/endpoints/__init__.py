"""The views: one module for each group of URLs."""
