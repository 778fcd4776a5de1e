"""What the C forward can compute of a model, read from its modules or from what they compute."""
