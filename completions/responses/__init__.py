"""A job's view and events become response objects."""
