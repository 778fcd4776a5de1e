"""The Celery app; its settings are read on first use from `project.celeryconfig`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("quire", set_as_current=True)
app.config_from_object("project.celeryconfig")
