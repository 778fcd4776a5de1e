"""The border to django-unfold: nothing else imports it, so that Django's own admin can take its
place by editing this file.

What is only read is a `ReadOnlyAdmin`; pages that are not about a table are made with `page`.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_POST

from completions.admin.state import UnreachableError

if TYPE_CHECKING:  # unfold has no types; its classes are drop-in
    from dataclasses import dataclass

    from django.contrib.admin import ModelAdmin
    from django.contrib.auth.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from django.core.paginator import Paginator as EndlessPaginator
    from django.forms import CheckboxSelectMultiple, Textarea

    @dataclass
    class SearchResult:
        title: str
        description: str
        link: str
        icon: str | None

else:
    from unfold.admin import ModelAdmin
    from unfold.dataclasses import SearchResult
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from unfold.paginator import InfinitePaginator as EndlessPaginator
    from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as CheckboxSelectMultiple
    from unfold.widgets import UnfoldAdminTextareaWidget as Textarea

__all__ = [
    "AdminPasswordChangeForm",
    "CheckboxSelectMultiple",
    "EndlessPaginator",
    "ModelAdmin",
    "ReadOnlyAdmin",
    "SearchResult",
    "Textarea",
    "UserChangeForm",
    "UserCreationForm",
    "acts",
    "page",
    "sees",
]

admin.site.index_template = "quire/dashboard.html"

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


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


def sees(permission: str) -> Callable[[View[P]], View[P]]:
    """A page for users with this permission of `completions`; 403 for others."""

    def guard(view: View[P]) -> View[P]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.has_perm(f"completions.{permission}"):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        return guarded

    return guard


def acts(permission: str) -> Callable[[View[P]], View[P]]:
    """The same for what changes something: by POST only, so that no link and no look-ahead of a
    browser can do it. While Redis is down the dashboard says that nothing was done."""

    def guard(view: View[P]) -> View[P]:
        @wraps(view)
        def acting(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                return view(request, *args, **kwargs)
            except UnreachableError as error:
                messages.error(request, f"Nothing was done. {error}")
                return redirect("admin:index")

        return require_POST(sees(permission)(acting))

    return guard
