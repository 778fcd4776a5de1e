"""A request's body becomes a typed request, and the typed request becomes a job."""
