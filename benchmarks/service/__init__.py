"""Whole installations: their throughput, latency and limits."""
