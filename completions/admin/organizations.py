"""Organizations with their usage, and the users of the admin."""

from collections.abc import Collection, Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.accounts import changes, members
from completions.accounts.audit import Actor
from completions.accounts.operator_groups import USER_PREFIX
from completions.accounts.scope import is_confined
from completions.admin.base import (
    AdminPasswordChangeForm,
    ModelAdmin,
    UserChangeForm,
    UserCreationForm,
    make_column,
)
from completions.admin.dashboard import figures
from completions.admin.dashboard.figures import MONTH
from completions.admin.display import format_compact, format_money, make_label
from completions.admin.members import MembershipInline, save_members
from completions.admin.refusals import list_refusals
from completions.admin.usage.panel import make_panel
from completions.admin.usage.view_state import Defaults
from completions.models import ApiKey, Batch, File, Job, JobStatus, Organization
from completions.models.organizations import BUDGETS, MEMBER_LIMITS
from completions.usage.refusals import select_refusals


class OrganizationForm(forms.ModelForm[Organization]):
    suspended = forms.BooleanField(
        required=False,
        help_text="Refuse its keys, and hold its batches, until this is turned off.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "suspended" in self.fields:  # the user may change it
            self.fields["suspended"].initial = self.instance.suspended_at is not None

    def clean(self) -> dict[str, object]:
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        if "suspended" in self.changed_data:
            self.instance.suspended_at = timezone.now() if cleaned.get("suspended") else None
        return cleaned


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin[Organization]):
    empty_text = "An organization owns keys, budgets and usage."
    list_display = [
        "name",
        make_column(
            "Status", lambda row: make_label("suspended" if row.suspended_at else "active")
        ),
        make_column("API keys", lambda row: _show_count("apikey", row, row.keys), "keys"),
        make_column(
            "Requests, 30 days",
            lambda row: _show_count("usagerecord", row, format_compact(row.used["requests"])),
        ),
        make_column(
            "Tokens",
            lambda row: format_compact(row.used["prompt_tokens"] + row.used["completion_tokens"]),
        ),
        make_column("Cost", lambda row: format_money(row.used["cost_nanos"])),
        "store_prompts",
    ]
    search_fields = ["name"]
    change_form_outer_before_template = "quire/usage_panel.html"
    change_form_before_template = "quire/refusals.html"
    form = OrganizationForm
    changeable = ["name", "store_prompts", "suspended_at", *BUDGETS, *MEMBER_LIMITS]
    inlines = [MembershipInline]
    fieldsets = [
        ("Organization", {"fields": ["name", "store_prompts", "suspended"]}),
        ("Budgets", {"fields": [*BUDGETS]}),
        ("Limits of members' keys", {"fields": [*MEMBER_LIMITS], "classes": ["collapse"]}),
    ]

    def save_model(
        self, request: HttpRequest, obj: Organization, form: object, change: bool
    ) -> None:
        if change:
            changes.change(obj, self.changeable, Actor.from_user(request.user))
        else:
            changes.add(obj, Actor.from_user(request.user))

    def get_inlines(self, request: HttpRequest, obj: Organization | None) -> Any:
        """Show operators the members; for an organization's admins there is their own table."""
        return [] if is_confined(request.user) else super().get_inlines(request, obj)

    def save_formset(
        self, request: HttpRequest, form: object, formset: object, change: bool
    ) -> None:
        save_members(request, formset)

    def delete_model(self, request: HttpRequest, obj: Organization) -> None:
        changes.delete(obj, Actor.from_user(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        for organization in queryset:
            changes.delete(organization, Actor.from_user(request.user))

    def get_deleted_objects(
        self, objs: Collection[Organization], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Count what goes with the organizations, and name the work that stands against it.

        Django's own method loads every row, and asks for a permission of each table.
        """
        owned = {"organization__in": [organization.pk for organization in objs]}
        keys = ApiKey.objects.filter(**owned)
        jobs = Job.objects.filter(**owned)
        batches = Batch.objects.filter(**owned)
        gone = {
            "organizations": len(objs),
            "API keys": keys.count(),
            "background jobs": jobs.count(),
            "batches": batches.count(),
            "files": File.objects.filter(**owned).count(),
        }
        standing = {
            "API keys that are not revoked": (keys.filter(revoked_at=None), "Revoke them."),
            "Background jobs that have not ended": (
                jobs.filter(status=JobStatus.QUEUED),
                "Cancel them, or wait until they have.",
            ),
            "Batches that have not ended": (
                batches.filter(ended_at=None),
                "Cancel them, or wait until they have.",
            ),
        }
        against = [
            f"{what}: {rows.count()}. {advice}"
            for what, (rows, advice) in standing.items()
            if rows.exists()
        ]
        return [str(organization) for organization in objs], gone, set(), against

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Mapping[str, object] | None = None,
    ) -> HttpResponse:
        now = timezone.now()
        found = self.get_object(request, object_id)
        rows = select_refusals(MONTH.start(now)).filter(organization=found)
        listed = list_refusals(rows, now, organization__id__exact=object_id)
        extra: dict[str, object] = {}
        if found is not None:
            panel = make_panel(request, {"organization": found.pk}, Defaults(group="key"))
            extra = {"rows": listed, "span": "30 days", **panel}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **extra})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(keys=Count("api_keys"))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Read the usage of all organizations in one query."""
        changelist = super().get_changelist_instance(request)
        used = figures.sum_by_organization(MONTH, timezone.now())
        for organization in changelist.result_list:
            organization.used = used.get(organization.pk, figures.NOTHING)
        return changelist


def _show_count(table: str, organization: Organization, text: object) -> SafeString:
    """Return a count that links to the organization's rows of a table."""
    link = reverse(f"admin:completions_{table}_changelist")
    return format_html(
        '<a class="q-link" href="{}?organization__id__exact={}">{}</a>',
        link,
        organization.pk,
        text,
    )


admin.site.unregister([User, Group])


@admin.register(User)
class OperatorAdmin(UserAdmin[User], ModelAdmin[User]):
    form = UserChangeForm  # type: ignore[assignment] # the stubs of UserAdmin do the same
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    inlines = [MembershipInline]
    list_display = ["username", "email", "is_staff", "is_superuser", "last_login"]

    def get_readonly_fields(
        self, request: HttpRequest, obj: User | None = None
    ) -> list[str] | tuple[str, ...]:
        """Keep the names of users who sign in by OpenID Connect: the form would refuse them."""
        fixed = super().get_readonly_fields(request, obj)
        ours = obj is None or not obj.username.startswith(USER_PREFIX)
        return fixed if ours else (*fixed, "username")

    def get_inlines(self, request: HttpRequest, obj: User | None) -> Any:
        """Show the memberships of a user who exists: the form of a new one asks for a password."""
        return super().get_inlines(request, obj) if obj else []

    def save_formset(
        self, request: HttpRequest, form: object, formset: object, change: bool
    ) -> None:
        save_members(request, formset)

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        members.remove_user([obj], Actor.from_user(request.user))
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        members.remove_user(queryset, Actor.from_user(request.user))
        super().delete_queryset(request, queryset)

    def save_related(
        self, request: HttpRequest, form: forms.ModelForm[User], formsets: object, change: bool
    ) -> None:
        """Let a user who is given a role sign in, which takes the status of staff."""
        super().save_related(request, form, formsets, change)
        user = form.instance
        if "groups" in form.changed_data and not user.is_staff and user.groups.exists():
            user.is_staff = True
            user.save(update_fields=["is_staff"])
            messages.info(request, f"{user} has a role, and may sign in from now on.")


@admin.register(Group)
class RoleAdmin(GroupAdmin, ModelAdmin[Group]): ...
