"""The border to django-unfold: nothing else imports it, so that Django's own admin can take its
place by editing this file.

What is only read is a `ReadOnlyAdmin`; pages that are not about a table are made with `page`.
"""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse

if TYPE_CHECKING:  # unfold has no types; its classes are drop-in
    from django.contrib.admin import ModelAdmin, TabularInline
    from django.contrib.auth.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
else:
    from unfold.admin import ModelAdmin, TabularInline
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

__all__ = [
    "AdminPasswordChangeForm",
    "ModelAdmin",
    "ReadOnlyAdmin",
    "TabularInline",
    "UserChangeForm",
    "UserCreationForm",
    "page",
]


class ReadOnlyAdmin(ModelAdmin[Any]):
    """Rows that the service writes and nobody edits."""

    list_select_related = ["organization", "api_key"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def page(
    request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
) -> TemplateResponse:
    """A page inside the admin's frame."""
    frame = {**admin.site.each_context(request), "title": title, "subtitle": None}
    return TemplateResponse(request, template, {**frame, **context}, status=status)
