"""The composition root, which assembles the service out of `completions` and `workers`.

settings.py, celery.py, celeryconfig.py and urls.py configure it; server/ is the ASGI edge;
processes/ are the child processes of `manage.py up`; management/ has the commands that run them.
"""

from project.celery import app as celery_app

__all__ = ["celery_app"]
