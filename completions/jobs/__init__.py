"""The life of a job in Redis: submitted, claimed, published, ended. No Django, no Celery."""
