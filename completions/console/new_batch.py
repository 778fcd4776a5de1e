"""The page that makes a batch of an uploaded file, or of pasted lines."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.files import File as Content
from django.core.files.base import ContentFile
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from completions.accounts.scope import select_managed
from completions.admin.base import ClearableFileInput, render_page, require_view
from completions.batches import files
from completions.batches.input_lines import infer_endpoint
from completions.console.acting import require_usable, store_batch
from completions.endpoints.batch_request import MAX_PILOT_LINES
from completions.endpoints.files import DEFAULT_KEEP, make_storage_error
from completions.exceptions import APIError
from completions.models import ApiKey, Batch, OnInvalid, OnLate, Scope
from completions.models.window import parse_window

PASTED = 64 * 1024
"""The most characters that are pasted: larger bodies are for files."""


def _check_window(text: str) -> None:
    try:
        parse_window(text)
    except ValueError as error:
        raise ValidationError(f"It {error}.") from error


class NewBatchForm(forms.Form):
    """What a new batch is made of."""

    key = forms.TypedChoiceField(
        coerce=int,
        label="Run as key",
        help_text="The lines count toward this key's limits, budgets and usage.",
    )
    file = forms.FileField(
        required=False,
        label="A file of requests, one on each line",
        widget=ClearableFileInput({"x-ref": "file"}),
    )
    lines = forms.CharField(
        required=False,
        strip=False,
        max_length=PASTED,
        label="Lines",
        widget=forms.Textarea(
            attrs={"class": "q-input q-code", "rows": 6, "spellcheck": "false", "wrap": "off"}
        ),
    )
    name = forms.CharField(required=False, max_length=200)
    window = forms.CharField(
        initial="24h", max_length=8, validators=[_check_window], help_text="30m, 24h, 2d; up to 7d."
    )
    pilot = forms.IntegerField(
        initial=20,
        min_value=0,
        max_value=MAX_PILOT_LINES,
        label="Pilot lines",
        help_text="A forecast runs this many lines, drawn at random.",
    )
    on_invalid = forms.ChoiceField(
        choices=[(OnInvalid.SKIP, "goes to the error file"), (OnInvalid.FAIL, "fails the batch")],
        label="A refused line",
    )
    on_late = forms.ChoiceField(
        choices=[(OnLate.ACCEPT, "runs"), (OnLate.REFUSE, "is refused")],
        label="A batch that is probably late",
    )
    receipts = forms.BooleanField(required=False, label="Receipts of what computed each line")
    close = forms.BooleanField(required=False, label="Close answers that max_tokens would cut")

    def __init__(self, keys: list[ApiKey], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        choices = [(key.pk, f"{key.organization.name} / {key.name}") for key in keys]
        self.fields["key"].choices = choices  # type: ignore[attr-defined]
        for bound in self.list_options():
            bound.field.widget.attrs["class"] = "q-input"

    def list_options(self) -> list[forms.BoundField]:
        """Return the fields of the batch that take a text or a choice."""
        names = ("key", "name", "window", "pilot", "on_invalid", "on_late")
        return [self[name] for name in names]

    def clean(self) -> dict[str, object]:
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        if "file" in cleaned and bool(cleaned["file"]) == bool(cleaned.get("lines")):
            message = "Choose a file or paste lines, not both."
            raise ValidationError(message if cleaned["file"] else "Choose a file, or paste lines.")
        return cleaned

    def open_lines(self) -> Content[bytes]:
        uploaded: Content[bytes] | None = self.cleaned_data["file"]
        return uploaded or ContentFile(self.cleaned_data["lines"].encode(), "pasted.jsonl")

    def make_batch(self, endpoint: str, is_held: bool) -> Batch:
        """Make a batch that is not stored. A held one waits after its pilot, with a forecast."""
        cleaned = self.cleaned_data
        return Batch(
            endpoint=endpoint,
            completion_window=cleaned["window"],
            on_late=cleaned["on_late"],
            on_invalid=cleaned["on_invalid"],
            receipts=cleaned["receipts"],
            close=cleaned["close"],
            metadata={"name": cleaned["name"]} if cleaned["name"] else None,
            output_seconds=int(DEFAULT_KEEP.total_seconds()),
            held=is_held,
            pilot=cleaned["pilot"] if is_held else None,
        )


@require_view("change_batch", for_members=True)
def make_batch(request: HttpRequest) -> HttpResponseBase:
    managed = select_managed(ApiKey.objects.active().select_related("organization"), request.user)
    keys = [
        key
        for key in managed.order_by("organization__name", "name")
        if Scope.BATCHES in key.scopes and key.organization.suspended_at is None
    ]
    if request.method != "POST":
        form = NewBatchForm(keys)
    else:
        form = NewBatchForm(keys, request.POST, request.FILES)
        if form.is_valid():
            (key,) = [each for each in keys if each.pk == form.cleaned_data["key"]]
            try:
                return _lead_to(request, _store(request, form, key))
            except APIError as error:
                form.add_error(None, error.message)
    return render_page(request, "quire/new_batch.html", "New batch", {"form": form})


def _store(request: HttpRequest, form: NewBatchForm, key: ApiKey) -> Batch:
    """Store the file and its batch. Raises APIError."""
    principal = require_usable(key, Scope.BATCHES)
    content = form.open_lines()
    endpoint = infer_endpoint(content)
    content.seek(0)
    owner = key.organization_id, key.pk
    try:
        file = files.store_upload(content, content.name or "", owner, DEFAULT_KEEP)
    except files.StorageLimitError as error:
        raise make_storage_error(error, "file") from error
    except files.FileLostError as error:
        raise APIError("internal_error", str(error)) from error
    batch = form.make_batch(endpoint, "forecast" in request.POST)
    store_batch(request.user, key, principal, batch, file, None)
    return batch


def _lead_to(request: HttpRequest, batch: Batch) -> HttpResponseBase:
    page = reverse("admin:completions_batch_change", args=[batch.id])
    if "HX-Request" in request.headers:  # it would follow a redirect by itself
        return HttpResponse(headers={"HX-Redirect": page})
    return redirect(page)
