"""Batches: files of requests that are validated, sent to the queue, and written to files."""
