"""API keys: a secret is shown once."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from completions import accounts, model_files
from completions.admin.base import ModelAdmin
from completions.audit import Actor
from completions.models import ApiKey, Scope


class ApiKeyForm(forms.ModelForm[ApiKey]):
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None checked: every model.",
    )

    scopes = forms.MultipleChoiceField(
        choices=Scope.choices, required=False, widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        served = [entry.id for entry in model_files.served_models()]
        gone = [name for name in self.instance.allowed_models if name not in served]
        choices = [(name, name) for name in served]
        choices += [(name, f"{name} (no longer served)") for name in gone]
        self.fields["allowed_models"].choices = choices  # type: ignore[attr-defined]


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin[ApiKey]):
    form = ApiKeyForm
    list_display = ["name", "prefix", "organization", "state", "created_at", "expires_at"]
    list_filter = ["organization", "revoked_at", "expires_at"]
    list_select_related = ["organization"]
    search_fields = ["name", "public_id"]
    actions = ["revoke"]
    changeable = [
        "name", "allowed_models", "expires_at",
        "role", "scopes", "allowed_networks", "requests_per_minute", "tokens_per_minute",
        "max_concurrency", "default_priority", "max_priority", "daily_token_budget",
        "monthly_token_budget", "daily_cost_budget", "monthly_cost_budget", "max_enqueued_tokens",
    ]  # fmt: skip
    fields = ["organization", *changeable]

    @admin.display(description="Secret begins", ordering="public_id")
    def prefix(self, key: ApiKey) -> str:
        return f"sk-{key.public_id}-…"

    @admin.display
    def state(self, key: ApiKey) -> str:
        if key.revoked_at is not None:
            return "revoked"
        expired = key.expires_at is not None and key.expires_at <= timezone.now()
        return "expired" if expired else "active"

    @admin.action(description="Revoke selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        revoked = sum(accounts.revoke(key, Actor.of(request.user)) for key in queryset)
        self.message_user(request, f"{revoked} revoked. They stop working within a second.")

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        return ["organization", "prefix", "state", "created_at", "revoked_at"] if obj else []

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        shown = ["prefix", "state", "created_at", "revoked_at"] if obj else []
        return [*self.fields, *shown]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Usage hangs on keys: they are revoked, not deleted."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            accounts.change(obj, self.changeable, Actor.of(request.user))
        else:
            # For response_add of this same request; the row has only the digest.
            request.issued_secret = accounts.issue(obj, Actor.of(request.user))  # type: ignore[attr-defined]

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        """The only page that ever holds the secret: not stored, not redirected to, not cached."""
        context = {
            **self.admin_site.each_context(request),
            "title": f"Key {obj.name} created",
            "opts": self.opts,
            "key": obj,
            "secret": request.issued_secret,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/completions/apikey/created.html", context)
