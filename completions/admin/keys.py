"""API keys: creation, limits, usage, rotation and revocation. A secret is shown once."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from completions.accounts import changes, members
from completions.accounts.audit import Actor
from completions.accounts.keys import read_limits
from completions.accounts.scope import is_confined, select_managed, select_seen
from completions.admin.base import (
    CheckboxSelectMultiple,
    ModelAdmin,
    Textarea,
    render_page,
    require_change,
)
from completions.admin.dashboard import chart_js, figures
from completions.admin.dashboard.figures import MONTH
from completions.admin.display import (
    format_ago,
    format_compact,
    format_exact,
    format_money,
    make_label,
    make_two_lines,
)
from completions.admin.refusals import list_refusals, list_wrong_keys
from completions.admin.usage.panel import make_panel
from completions.admin.usage.view_state import Defaults
from completions.catalog import model_files
from completions.contract.limits import LIMITS
from completions.models import ApiKey, Organization, Scope
from completions.models.organizations import (
    BUDGETS,
    all_scopes,
    parse_public_id,
    validate_networks,
)
from completions.usage.refusals import select_refusals

GRACES = ((0, "now"), (1, "in an hour"), (24, "in a day"), (168, "in a week"), (720, "in 30 days"))
"""Hours for which the old secret still works after a rotation, with their labels."""


class LinesField(forms.CharField):
    widget = Textarea

    def prepare_value(self, value: object) -> object:
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: object) -> list[str]:  # type: ignore[override] # the model's is a list
        return [line.strip() for line in str(value or "").splitlines() if line.strip()]

    def has_changed(self, initial: object, data: object) -> bool:
        return bool((initial or []) != self.to_python(data))


class ApiKeyForm(forms.ModelForm[ApiKey]):
    allowed_models = forms.MultipleChoiceField(
        required=False, widget=CheckboxSelectMultiple, help_text="Check none to allow every model."
    )
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=all_scopes,
        required=False,
        widget=CheckboxSelectMultiple,
        help_text="What the key may do.",
    )
    allowed_networks = LinesField(
        required=False,
        validators=[validate_networks],
        widget=Textarea(attrs={"rows": 3, "placeholder": "10.0.0.0/8"}),
        help_text="Addresses or CIDR networks that may use the key, one per line; empty for all.",
    )

    member: User | None = None
    """The user, if they are confined to organizations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "allowed_models" not in self.fields:  # the user may only view
            return
        served = [entry.id for entry in model_files.load_catalog()]
        gone = [name for name in self.instance.allowed_models if name not in served]
        choices = [(name, name) for name in served]
        choices += [(name, f"{name} (no longer served)") for name in gone]
        self.fields["allowed_models"].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, object]:
        """Refuse a member's new key beyond the organization's number of keys."""
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        organization = cleaned.get("organization")
        if self.member is not None and isinstance(organization, Organization):
            members.require_room(organization, self.member)
        return cleaned


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin[ApiKey]):
    empty_text = "A key is what a client sends to use the API. Its secret is shown once."
    form = ApiKeyForm
    list_display = ["named", "prefix", "state", "use", "limits", "last_used"]
    list_filter = ["organization", "role", "revoked_at", "expires_at"]
    list_select_related = ["organization"]
    search_fields = ["name", "public_id", "previous_public_id"]
    search_help_text = "A name, or how a secret begins."
    actions = ["revoke_selected"]
    ordering = ["name"]
    sortable_by = ["named", "last_used"]
    readonly = ["organization", "owner", "prefix", "state", "created_at", "last_used", "revoked_at"]
    change_form_outer_before_template = "quire/usage_panel.html"
    change_form_before_template = "quire/key.html"
    change_form_outer_after_template = "quire/key_actions.html"
    groups = (
        ("Access", ["role", "scopes", "allowed_models", "allowed_networks", "expires_at"]),
        ("Limits", [*(limit.column for limit in LIMITS), "default_priority", "max_priority"]),
        ("Budgets", BUDGETS),
    )
    member_groups = (("Access", ["scopes", "allowed_models", "allowed_networks", "expires_at"]),)
    """What members choose; the organization's limits of members' keys are the rest."""
    changeable = ["name", *(name for _, names in groups for name in names)]

    # The list ------------------------------------------------------------------------------------

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Read the usage of all keys on the page in one query."""
        changelist = super().get_changelist_instance(request)
        keys = list(changelist.result_list)
        use = figures.count_daily_tokens([key.pk for key in keys], timezone.now())
        for key in keys:
            key.daily_tokens = use[key.pk]
        return changelist

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ApiKey], search_term: str
    ) -> tuple[QuerySet[ApiKey], bool]:
        """Search for the public id in a secret: nothing else of a secret is stored."""
        typed = search_term.strip()
        term = parse_public_id(typed) if typed.startswith("sk-") else typed
        return super().get_search_results(request, queryset, term or typed)

    @admin.display(description="Secret", ordering="public_id")
    def prefix(self, key: ApiKey) -> SafeString:
        return format_html("<code>sk-{}-…</code>", key.public_id)

    @admin.display(description="Name", ordering="name")
    def named(self, key: ApiKey) -> SafeString:
        return make_two_lines(key.name, key.organization.name)

    @admin.display
    def state(self, key: ApiKey) -> SafeString:
        now = timezone.now()
        state = "suspended" if key.organization.suspended_at else key.state(now)
        ends = state == "active" and key.expires_at
        return make_two_lines(
            make_label(state), f"expires {format_ago(key.expires_at, now)}" if ends else ""
        )

    @admin.display(description="Tokens, 30 days")
    def use(self, key: Any) -> SafeString:
        title = f"{format_exact(sum(key.daily_tokens))} tokens in 30 days"
        return format_html(
            '<span class="q-use">{} {}</span>',
            chart_js.make_sparkline(key.daily_tokens, title),
            format_compact(sum(key.daily_tokens)) if any(key.daily_tokens) else "",
        )

    @admin.display(description="Limits")
    def limits(self, key: ApiKey) -> SafeString:
        labels = (
            *((getattr(key, limit.column), limit.unit) for limit in LIMITS),
            (key.daily_token_budget, "tok/day"),
            (key.monthly_token_budget, "tok/month"),
        )
        parts = [f"{format_compact(value)} {unit}" for value, unit in labels if value]
        budget = read_limits(key).budget
        costs = ((budget.daily_cost, "day"), (budget.monthly_cost, "month"))
        parts += [
            f"cost {format_money(value)}/{unit}" for value, unit in costs if value is not None
        ]
        return format_html('<span class="q-faint">{}</span>', ", ".join(parts) or "none")

    @admin.display(description="Last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> str:
        return format_ago(key.last_used_at, timezone.now()) if key.last_used_at else "never"

    @admin.action(description="Revoke selected keys", permissions=["change"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = select_managed(queryset, request.user)
        revoked = sum(changes.revoke(key, Actor.from_user(request.user)) for key in keys)
        self.message_user(request, f"Keys revoked: {revoked}. They stop working within a second.")

    # One key -------------------------------------------------------------------------------------

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        return self.readonly if obj else []

    def get_fieldsets(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        about = ["name", *(self.readonly if obj else ["organization"])]
        groups: Sequence[tuple[str, list[str]]] = self.groups
        if is_confined(request.user):
            # An admin names, rotates and revokes a key that an operator made.
            groups = self.member_groups if obj is None or obj.owner_id else ()
        return [("Key", {"fields": about}), *((n, {"fields": names}) for n, names in groups)]

    def get_form(
        self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        if is_confined(request.user) and obj is None:
            form.member = request.user
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, str | list[str]]:
        """Fill the form of a clone with everything but the secret."""
        like = request.GET.get("like", "")
        is_id = like.isascii() and like.isdecimal() and len(like) < 19
        keys = select_seen(ApiKey.objects.all(), request.user)
        key = keys.filter(pk=like).first() if is_id else None
        if key is None or not self.has_view_permission(request, key):
            return {}
        policy = {name: getattr(key, name) for name in self.changeable}
        return {**policy, "name": f"{key.name} (copy)"[:100], "organization": key.organization_id}

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Mapping[str, object] | None = None,
    ) -> HttpResponse:
        key = self.get_object(request, object_id)
        extra: dict[str, object] = {}
        if key is not None:
            panel = make_panel(request, {"key": key.pk}, Defaults(group="model"))
            extra = {
                **_load_refusals(key),
                **panel,
                "graces": GRACES,
                "may_change": self.has_change_permission(request, key),
            }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **extra})

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return False: keys are revoked, not deleted, because usage refers to them."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiKey, form: object, change: bool) -> None:
        if change:
            changes.change(obj, self.changeable, Actor.from_user(request.user))
        else:
            namesakes = ApiKey.objects.active().filter(organization=obj.organization, name=obj.name)
            if namesakes.exists():
                messages.warning(
                    request,
                    f"{obj.organization} already has an active key named {obj.name}. "
                    "Usage and the audit trail list both under this name.",
                )
            if is_confined(request.user):
                members.limit_key(obj, request.user)
            # Kept for response_add of this request; the row stores only the digest.
            request.issued_secret = changes.issue(obj, Actor.from_user(request.user))  # type: ignore[attr-defined]

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        return _show_secret(request, obj, request.issued_secret, "created")  # type: ignore[attr-defined]


def _show_secret(request: HttpRequest, key: ApiKey, secret: str, did: str) -> HttpResponse:
    """Show the secret. No other page does, because it is neither stored nor cached."""
    context = {"key": key, "secret": secret, "opts": ApiKey._meta}
    return render_page(request, "quire/secret.html", f"Key {key.name} {did}", context)


def _load_refusals(key: ApiKey) -> dict[str, object]:
    now = timezone.now()
    previous_ends = key.previous_expires_at
    requests = reverse("admin:completions_usagerecord_changelist")
    return {
        "key": key,
        "key_state": key.state(now),
        "requests_link": f"{requests}?api_key={key.pk}",
        "refusals": list_refusals(
            select_refusals(MONTH.start(now)).filter(api_key=key), now, api_key=key.pk
        ),
        "wrong_keys": list_wrong_keys(key, MONTH.start(now), now),
        "previous_ends": format_ago(previous_ends, now)
        if previous_ends and previous_ends > now
        else "",
    }


@require_change("change_apikey", for_members=True)
def rotate(request: HttpRequest, key_id: int) -> HttpResponseBase:
    """Issue a new secret; the old one works for the chosen time."""
    key = get_object_or_404(select_managed(ApiKey.objects.all(), request.user), pk=key_id)
    hours = request.POST.get("grace", "")
    if hours not in {str(hours) for hours, _ in GRACES} or key.revoked_at is not None:
        messages.error(request, "Nothing was changed: choose when the old secret stops working.")
        return redirect("admin:completions_apikey_change", key_id)
    secret = changes.rotate(key, timedelta(hours=int(hours)), Actor.from_user(request.user))
    key.refresh_from_db()
    return _show_secret(request, key, secret, "rotated")


@require_change("change_apikey", for_members=True)
def revoke(request: HttpRequest, key_id: int) -> HttpResponseBase:
    """Revoke a key permanently; its batches are cancelled."""
    key = get_object_or_404(select_managed(ApiKey.objects.all(), request.user), pk=key_id)
    if changes.revoke(key, Actor.from_user(request.user)):
        messages.success(request, f"{key.name} is revoked. It stops working within a second.")
    else:
        messages.warning(request, f"{key.name} was already revoked.")
    return redirect("admin:completions_apikey_change", key_id)
