"""Chat templates of models, from packages that carry them, held against the formats of calls."""
