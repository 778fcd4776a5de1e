"""Organizations: who owns keys, jobs and usage."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from completions.admin.base import ModelAdmin
from completions.models import Organization


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin[Organization]):
    list_display = ["name", "key_count", "created_at"]
    search_fields = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(keys=Count("api_keys"))

    @admin.display(description="API keys", ordering="keys")
    def key_count(self, organization: Any) -> int:
        return int(organization.keys)
