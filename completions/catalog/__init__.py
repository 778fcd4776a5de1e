"""The models that models.toml names, and what their folders hold."""
