"""A job's events become response objects."""
