"""Webhooks: endpoints, and the log of deliveries, which can be sent again."""

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from completions.admin.base import CheckboxSelectMultiple, ModelAdmin, ReadOnlyAdmin, make_column
from completions.admin.display import NONE, format_seconds, make_label
from completions.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from completions.models.webhooks import all_events
from completions.webhooks import deliveries, events


class WebhookEndpointForm(forms.ModelForm[WebhookEndpoint]):
    events = forms.MultipleChoiceField(
        choices=[(value, value) for value in WebhookEvent.values],
        initial=all_events,
        widget=CheckboxSelectMultiple,
        help_text="The types of events to send.",
    )


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ModelAdmin[WebhookEndpoint]):
    empty_text = "An endpoint receives events, such as the end of a batch, at its address."
    form = WebhookEndpointForm
    list_display = ["url", "organization", "enabled", "created_at"]
    list_filter = ["enabled", "organization"]
    list_select_related = ["organization"]
    fields = ("organization", "url", "events", "enabled")
    actions = ["send_test", "rotate_secret"]

    def get_fields(
        self, request: HttpRequest, obj: WebhookEndpoint | None = None
    ) -> list[str | list[str] | tuple[str, ...] | tuple[()]]:
        """Include the secret for users who may change the address: the receiver needs it."""
        shows_secret = obj is not None and self.has_change_permission(request, obj)
        return [*self.fields, "secret"] if shows_secret else [*self.fields]

    def get_readonly_fields(
        self, request: HttpRequest, obj: object = None
    ) -> list[str] | tuple[str, ...]:
        return ["organization", "secret"] if obj else []

    @admin.action(description="Send a test event", permissions=["change"])
    def send_test(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        enabled = queryset.filter(enabled=True)
        for endpoint in enabled:
            delivery = events.send_test(endpoint)
            messages.success(request, f"{delivery.id} is on its way to {endpoint}: see Deliveries.")
        if disabled := queryset.count() - len(enabled):
            messages.error(request, f"Endpoints that are not enabled get nothing: {disabled}.")

    @admin.action(description="Rotate the secret", permissions=["change"])
    def rotate_secret(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        for endpoint in queryset:
            endpoint.rotate_secret(timezone.now())
            messages.success(
                request,
                f"{endpoint} has a new secret, which its page shows. The earlier one signs too "
                f"until {endpoint.previous_until:%Y-%m-%d %H:%M} UTC.",
            )


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyAdmin):
    empty_text = "A delivery is listed when an event is sent to a webhook."
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
    fields = ("id", "endpoint", "type", "subject", "data", "created_at", "due_at", "attempts_made")
    readonly_fields = ("attempts_made",)
    actions = ["replay"]

    @admin.display(description="Attempts")
    def attempts_made(self, delivery: WebhookDelivery) -> SafeString | str:
        rows = (
            (each["at"], each["error"] or each["status_code"], format_seconds(each["seconds"]))
            for each in reversed(delivery.history)
        )
        return format_html_join("", "<div>{}: {}, after {}</div>", rows) or NONE

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
