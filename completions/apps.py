"""The Django application of the web tier."""

from django.apps import AppConfig


class CompletionsConfig(AppConfig):
    name = "completions"
    verbose_name = "Quire"

    def ready(self) -> None:
        """Register the system checks."""
        from completions import checks  # noqa: F401
