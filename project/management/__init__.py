"""Commands that run the service: they start its processes, prepare models and check health."""
