"""How a web process reads the events of jobs."""
