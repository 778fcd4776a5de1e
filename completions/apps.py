"""The Django application of the web tier."""

import django_stubs_ext
from django.apps import AppConfig
from django.db.models.signals import post_migrate

# Must run before the admin's modules load: it lets them write ModelAdmin[Model] at run time.
django_stubs_ext.monkeypatch()


class CompletionsConfig(AppConfig):
    name = "completions"
    verbose_name = "Quire"

    def ready(self) -> None:
        """Register the system checks, and create the operators' groups after each migration."""
        from completions import checks  # noqa: F401
        from completions.accounts import operator_groups

        post_migrate.connect(operator_groups.ensure, sender=self)
