"""The web tier, the life of jobs in Redis, and the background worker. Imports no torch."""
