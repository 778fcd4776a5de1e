"""Periodic work of the CPU worker: settling ended jobs, sampling the load, pruning."""
