"""A prepared request enters the queue, and its job's events leave as an HTTP response."""
