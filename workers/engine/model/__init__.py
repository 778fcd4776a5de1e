"""A transformers model over a paged KV cache."""
