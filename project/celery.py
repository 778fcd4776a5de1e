"""The Celery apps; their settings are read on first use from `project.celeryconfig`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

_CONFIG = "project.celeryconfig"

app = Celery("quire", set_as_current=True, loader="app", config_source=_CONFIG)


def make_engine_app() -> Celery:
    """Return the app of an engine worker, which needs no Django models. Without Celery's fixup for
    Django, it neither loads the applications nor checks the URL table."""
    return Celery("quire", set_as_current=True, loader="app", config_source=_CONFIG, fixups=[])
