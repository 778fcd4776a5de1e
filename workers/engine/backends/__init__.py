"""What computes the model: one package for each device or way, over the shared ``base``."""
