"""Organizations: who owns keys, jobs and usage."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from completions import accounts
from completions.admin.base import ModelAdmin
from completions.audit import Actor
from completions.models import Organization


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin[Organization]):
    list_display = ["name", "key_count", "created_at"]
    search_fields = ["name"]
    changeable = [
        "name", "store_prompts", "suspended_at", "daily_token_budget", "monthly_token_budget",
        "daily_cost_budget", "monthly_cost_budget", "max_enqueued_tokens",
    ]  # fmt: skip
    fields = [*changeable]

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        if change:
            accounts.change(obj, self.changeable, Actor.of(request.user))
        else:
            accounts.add(obj, Actor.of(request.user))

    def delete_model(self, request: HttpRequest, obj: Organization) -> None:
        accounts.delete(obj, Actor.of(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Organization]) -> None:
        for organization in queryset:
            accounts.delete(organization, Actor.of(request.user))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(keys=Count("api_keys"))

    @admin.display(description="API keys", ordering="keys")
    def key_count(self, organization: Any) -> int:
        return int(organization.keys)
