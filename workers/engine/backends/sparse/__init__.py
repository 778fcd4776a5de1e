"""Attention to the tokens that an indexer chooses, over latents in the paged cache."""
