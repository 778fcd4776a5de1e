"""Periodic work of the background worker: settling ended jobs, sampling the load, pruning."""
