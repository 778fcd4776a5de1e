"""The Django application of the web tier."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class CompletionsConfig(AppConfig):
    name = "completions"
    verbose_name = "Quire"

    def ready(self) -> None:
        """Register the system checks, and create the roles after each migration."""
        from completions import checks  # noqa: F401
        from completions.admin import roles

        post_migrate.connect(roles.ensure, sender=self)
