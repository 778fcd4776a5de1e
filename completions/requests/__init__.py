"""A request body becomes a job."""
