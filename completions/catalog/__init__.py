"""The models in models.toml, and the files in their folders."""
