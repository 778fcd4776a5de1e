"""Sessions: whose they are, what they take, and when they expire."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from completions.admin.base import ReadOnlyAdmin, make_column
from completions.models import Session


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "organization",
        "model",
        make_column("Turns", lambda row: row.num_turns),
        "bytes",
        "created_at",
        "expires_at",
    ]
    list_filter = ["organization", "model"]
    list_select_related = ["organization"]
    search_fields = ["id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(num_turns=Count("turns"))
        return rows
