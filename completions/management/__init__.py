"""Commands for operators of a running service: keys, batches, usage, engine workers."""
