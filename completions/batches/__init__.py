"""Files of requests that run while nobody waits: validated, fed to the queue, written to files."""
