"""Pages about what runs now: jobs, workers, models."""
