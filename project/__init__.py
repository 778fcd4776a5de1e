"""The composition root: settings, the Celery app, the URL table, the processes of `up`."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
