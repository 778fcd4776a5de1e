"""The boundary to django-unfold: only this file imports it, and only this file has to change to
return to Django's own admin.

Tables that nobody edits derive from `ReadOnlyAdmin`. Pages without a table are built with
`render_page`.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import ForeignKey, Model, QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_POST

from completions.accounts.scope import is_confined, may_manage, select_seen
from completions.admin.display import make_two_lines
from completions.admin.live.state import UnreachableError

if TYPE_CHECKING:  # unfold has no types; its classes replace these
    from dataclasses import dataclass

    from django.contrib.admin import ModelAdmin as UnfoldAdmin
    from django.contrib.admin import TabularInline as UnfoldInline
    from django.contrib.auth.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from django.core.paginator import Paginator as EndlessPaginator
    from django.forms import CheckboxSelectMultiple, ClearableFileInput, Textarea

    @dataclass
    class SearchResult:
        title: str
        description: str
        link: str
        icon: str | None

else:
    from unfold.admin import ModelAdmin as UnfoldAdmin
    from unfold.admin import TabularInline as UnfoldInline
    from unfold.dataclasses import SearchResult
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from unfold.paginator import InfinitePaginator as EndlessPaginator
    from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as CheckboxSelectMultiple
    from unfold.widgets import UnfoldAdminFileFieldWidget as ClearableFileInput
    from unfold.widgets import UnfoldAdminTextareaWidget as Textarea

__all__ = [
    "AdminPasswordChangeForm",
    "CheckboxSelectMultiple",
    "ClearableFileInput",
    "EndlessPaginator",
    "ModelAdmin",
    "ReadOnlyAdmin",
    "SearchResult",
    "TabularInline",
    "Textarea",
    "UserChangeForm",
    "UserCreationForm",
    "make_column",
    "owner",
    "render_page",
    "require_change",
    "require_view",
]

admin.site.index_template = "quire/dashboard.html"

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
PageView = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def make_column(title: str, show: Callable[[Any], Any], order: str = "") -> Callable[[Any], Any]:
    """Return a column for `list_display`: `show` returns the cell of a row. `order` is the field
    that the column sorts by; without one it cannot be sorted."""

    @admin.display(description=title, ordering=order or None)
    def cell(row: object) -> object:
        return show(row)

    cell.__name__ = title.lower().replace(" ", "_")  # part of CSS classes
    return cell


owner = make_column("Key", lambda row: make_two_lines(row.api_key.name, row.organization.name))


class SeenFilter(admin.RelatedFieldListFilter):
    """A filter that offers only the related rows that the user sees."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> Any:
        seen = select_seen(field.related_model._default_manager.all(), request.user)
        ordering = self.field_admin_ordering(field, request, model_admin)
        return field.get_choices(
            include_blank=False, ordering=ordering, limit_choices_to={"pk__in": seen.values("pk")}
        )


admin.FieldListFilter.register(
    lambda field: bool(field.remote_field), SeenFilter, take_priority=True
)


class ModelAdmin(UnfoldAdmin[M], Generic[M]):
    """A table of the rows that the user sees, whose address may contain the lookups of its filters
    only.

    Django takes any lookup of the table's own columns. Refuse regular expressions: on SQLite they
    run in Python and can stop the process, and their matches reveal columns that no page shows.
    """

    empty_text = ""
    """What a list without rows says: how its rows come to be."""
    linked_lookups: tuple[str, ...] = ()
    """Lookups of links from other pages, in addition to those of `list_filter`."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        return select_seen(super().get_queryset(request), request.user)

    def formfield_for_foreignkey(
        self, db_field: "ForeignKey[Any]", request: HttpRequest, **kwargs: Any
    ) -> ModelChoiceField[Any] | None:
        """Offer the rows that the user sees."""
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None and field.queryset is not None:
            field.queryset = select_seen(field.queryset, request.user)
        return field

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        allowed = super().has_change_permission(request, obj)
        return allowed and (obj is None or may_manage(request.user, obj))

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        allowed = super().has_delete_permission(request, obj)
        return allowed and (obj is None or may_manage(request.user, obj))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        if not _is_storable(value):
            return False
        if lookup in self.linked_lookups:
            return True
        return any(lookup in _list_lookups(each) for each in self.get_list_filter(request))


_INTEGERS = range(-(2**63), 2**63)
"""Those of SQL's bigint. SQLite and PostgreSQL raise errors for others, each its own."""


def _is_storable(value: str) -> bool:
    """Return whether a value is within SQL's integers if it is one, and within Python's times in
    UTC if it is a time. Django answers with the whole list to what is neither."""
    with suppress(ValueError):
        return int(value) in _INTEGERS  # as Django's fields read it: "+1" and "1_0" too
    with suppress(ValueError):
        try:
            moment = parse_datetime(value)
            if moment is not None and moment.tzinfo is not None:
                moment.astimezone(UTC)
        except OverflowError:
            return False
    return True


_SUFFIXES = ("", "__exact", "__id__exact", "__isnull", "__gte", "__lt")
"""What the filters of Django's `django.contrib.admin.filters` append to the name of a field."""


def _list_lookups(list_filter: object) -> Collection[str]:
    """Return the lookups in the links of one item of `list_filter`."""
    if isinstance(list_filter, type) and issubclass(list_filter, admin.SimpleListFilter):
        return (str(list_filter.parameter_name),)
    field = list_filter[0] if isinstance(list_filter, tuple | list) else list_filter
    return [f"{field}{suffix}" for suffix in _SUFFIXES]


class TabularInline(UnfoldInline[M, Model], Generic[M]):
    """Rows on the page of what they belong to."""


class ReadOnlyAdmin(ModelAdmin[Any]):
    """A table that the service writes and nobody edits."""

    list_select_related = ["organization", "api_key"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


def render_page(
    request: HttpRequest, template: str, title: str, context: dict[str, object], status: int = 200
) -> TemplateResponse:
    """Render a page inside the admin's frame."""
    frame = {**admin.site.each_context(request), "title": title, "subtitle": None}
    return TemplateResponse(request, template, {**frame, **context}, status=status)


def require_view(
    permission: str, *, for_members: bool = False
) -> Callable[[PageView[P]], PageView[P]]:
    """Decorate a page for users with this permission of `completions`; others get 403.

    A page `for_members` selects its rows by `accounts.scope`; the others are for operators.
    """

    def guard(view: PageView[P]) -> PageView[P]:
        @wraps(view)
        def check(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.has_perm(f"completions.{permission}"):
                raise PermissionDenied
            if not for_members and is_confined(request.user):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        return check

    return guard


def require_change(
    permission: str, *, for_members: bool = False
) -> Callable[[PageView[P]], PageView[P]]:
    """Decorate an action for users with this permission.

    Actions accept only POST, so no link and no browser prefetch can trigger them. If Redis is
    down, the user returns to the dashboard with a message.
    """

    def guard(view: PageView[P]) -> PageView[P]:
        @wraps(view)
        def check(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                return view(request, *args, **kwargs)
            except UnreachableError as error:
                messages.error(request, f"Nothing was done. {error}")
                return redirect("admin:index")

        return require_POST(require_view(permission, for_members=for_members)(check))

    return guard
