"""Organizations, with their keys and usage."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.admin.base import ModelAdmin
from completions.admin.dashboard import figures
from completions.admin.dashboard.periods import MONTH
from completions.admin.display import compact, label, money
from completions.models import Organization


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin[Organization]):
    list_display = [
        "name", "standing", "key_count", "requests", "tokens", "cost", "store_prompts",
    ]  # fmt: skip
    search_fields = ["name"]
    groups: tuple[tuple[str, list[Any]], ...] = (
        ("Organization", ["name", "store_prompts", "suspended_at"]),
        (
            "Budgets",
            [
                "daily_token_budget", "monthly_token_budget", "daily_cost_budget",
                "monthly_cost_budget", "max_enqueued_tokens",
            ],
        ),
    )  # fmt: skip
    changeable = [name for _, names in groups for name in names]
    fieldsets = [(name, {"fields": fields}) for name, fields in groups]

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        if change:
            changes.change(obj, self.changeable, Actor.of(request.user))
        else:
            changes.add(obj, Actor.of(request.user))

    def delete_model(self, request: HttpRequest, obj: Organization) -> None:
        changes.delete(obj, Actor.of(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        for organization in queryset:
            changes.delete(organization, Actor.of(request.user))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(keys=Count("api_keys"))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the usage of all organizations in one query."""
        found = super().get_changelist_instance(request)
        used = figures.by_organization(MONTH, timezone.now())
        for organization in found.result_list:
            organization.used = used.get(organization.pk, figures.NOTHING)
        return found

    @admin.display(description="Status")
    def standing(self, organization: Organization) -> SafeString:
        return label("suspended" if organization.suspended_at else "active")

    @admin.display(description="API keys", ordering="keys")
    def key_count(self, organization: Any) -> SafeString:
        link = reverse("admin:completions_apikey_changelist")
        return format_html(
            '<a class="q-link" href="{}?organization__id__exact={}">{}</a>',
            link, organization.pk, organization.keys,
        )  # fmt: skip

    @admin.display(description="Requests, 30 days")
    def requests(self, organization: Any) -> SafeString:
        link = reverse("admin:completions_usagerecord_changelist")
        return format_html(
            '<a class="q-link" href="{}?organization__id__exact={}">{}</a>',
            link, organization.pk, compact(organization.used["requests"]),
        )  # fmt: skip

    @admin.display(description="Tokens")
    def tokens(self, organization: Any) -> str:
        return compact(organization.used["prompt_tokens"] + organization.used["completion_tokens"])

    @admin.display(description="Cost")
    def cost(self, organization: Any) -> str:
        return money(organization.used["cost_nanos"])
