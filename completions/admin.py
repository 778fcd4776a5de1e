"""The admin: organizations, keys (a secret is shown once), and read-only usage and jobs."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from completions import keys, model_files
from completions.models import ApiKey, Batch, File, Job, Organization, UsageRecord

admin.site.site_header = admin.site.site_title = "Quire"
admin.site.index_title = "Service"


@admin.register(Organization)
class OrganizationAdmin(admin.ModelAdmin[Organization]):
    list_display = ["name", "key_count", "created_at"]
    search_fields = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        return super().get_queryset(request).annotate(keys=Count("api_keys"))

    @admin.display(description="API keys", ordering="keys")
    def key_count(self, organization: Any) -> int:
        return int(organization.keys)


class ApiKeyForm(forms.ModelForm[ApiKey]):
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None checked: every model.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        served = [entry.id for entry in model_files.served_models()]
        gone = [name for name in self.instance.allowed_models if name not in served]
        choices = [(name, name) for name in served]
        choices += [(name, f"{name} (no longer served)") for name in gone]
        self.fields["allowed_models"].choices = choices  # type: ignore[attr-defined]


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin[ApiKey]):
    form = ApiKeyForm
    list_display = ["name", "prefix", "organization", "state", "created_at", "expires_at"]
    list_filter = ["organization", "revoked_at", "expires_at"]
    list_select_related = ["organization"]
    search_fields = ["name", "public_id"]
    actions = ["revoke"]
    changeable = [
        "name", "allowed_models", "expires_at",
        "requests_per_minute", "tokens_per_minute", "max_concurrency", "max_priority",
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
        revoked = sum(keys.revoke(key) for key in queryset)
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
            obj.save(update_fields=self.changeable)
            transaction.on_commit(keys.announce_change)
        else:
            # For response_add of this same request; the row has only the digest.
            request.issued_secret = keys.issue(obj)  # type: ignore[attr-defined]

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


class ReadOnlyAdmin(admin.ModelAdmin[Any]):
    """Rows that the service writes and nobody edits."""

    list_select_related = ["organization", "api_key"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    list_display = [
        "job_id", "organization", "api_key", "model", "kind", "status", "prompt_tokens",
        "completion_tokens", "queued_ms", "run_ms", "finished_at",
    ]  # fmt: skip
    list_filter = ["status", "kind", "model", "organization"]
    date_hierarchy = "finished_at"
    search_fields = ["job_id"]


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Prompts are the client's own: neither request nor view is shown."""

    list_display = ["id", "organization", "api_key", "model", "status", "created_at", "finished_at"]
    list_filter = ["status", "model", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id"]
    exclude = ["request", "view", "events"]


@admin.register(File)
class FileAdmin(ReadOnlyAdmin):
    """The content is the client's own: it is not shown."""

    list_display = [
        "id", "filename", "organization", "api_key", "purpose", "bytes", "created_at", "expires_at",
    ]  # fmt: skip
    list_filter = ["purpose", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id", "filename"]
    exclude = ["content"]


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "organization", "api_key", "model", "status", "total", "completed", "failed",
        "created_at", "ended_at",
    ]  # fmt: skip
    list_filter = ["status", "model", "organization"]
    date_hierarchy = "created_at"
    search_fields = ["id"]
    exclude = ["pace"]
