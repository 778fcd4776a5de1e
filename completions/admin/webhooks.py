"""Webhooks: endpoints, and the log of deliveries, which can be sent again."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from completions.admin.base import ModelAdmin, ReadOnlyAdmin, make_column
from completions.admin.display import NONE, make_label
from completions.models import WebhookDelivery, WebhookEndpoint
from completions.webhooks import deliveries


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ModelAdmin[WebhookEndpoint]):
    list_display = ["url", "organization", "enabled", "created_at"]
    list_filter = ["enabled", "organization"]
    list_select_related = ["organization"]
    fields = ("organization", "url", "enabled")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Include the secret for users who may change the address: the receiver needs it."""
        shows_secret = obj is not None and self.has_change_permission(request, obj)
        return [*self.fields, "secret"] if shows_secret else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: object = None) -> Any:
        return ["organization", "secret"] if obj else []


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "type",
        "subject",
        make_column("To", lambda row: row.endpoint.url),
        make_column("Status", lambda row: _show_state(row)),
        "attempts",
        make_column("Answer", lambda row: row.error or row.status_code or NONE),
        "created_at",
    ]
    list_filter = ["type", "endpoint"]
    list_select_related = ["endpoint"]
    search_fields = ["id", "subject"]
    actions = ["replay"]

    @admin.action(description="Send again", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[WebhookDelivery]) -> None:
        count = deliveries.replay(queryset)
        messages.success(request, f"Deliveries sent again: {count}.")

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("completions.change_webhookdelivery")


def _show_state(delivery: WebhookDelivery) -> SafeString:
    if delivery.delivered_at:
        return make_label("active", "delivered")
    return make_label("draining", "waits") if delivery.due_at else make_label("revoked", "given up")
