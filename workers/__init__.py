"""The GPU tier: a Celery pool around the engine, and the engine itself."""
