"""The web tier, the life of jobs in Redis, and the CPU worker. Imports no torch."""
