"""Engine workers: a Celery pool around the engine, and the engine itself."""
