"""Requests of the playground that a user keeps, and opens by a link."""

import msgspec
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404

from completions.accounts.scope import Viewer, select_managed, select_seen
from completions.admin.base import require_change
from completions.console.drafts import Draft, read_draft
from completions.models import ApiKey, Preset
from completions.models.storable import replace_nul

MAX_PRESETS = 200
"""Presets of one user."""
MAX_BYTES = 256 * 1024
"""Bytes of one draft."""


def find_preset(preset_id: str, user: Viewer) -> Preset | None:
    """Return a preset of an organization that the user sees. Another user may have made it."""
    return select_seen(Preset.objects.filter(id=preset_id), user).first()


def list_presets(user: Viewer) -> list[Preset]:
    return list(select_seen(Preset.objects.filter(user=user.pk), user).defer("draft"))


@require_change("view_job", for_members=True)
def save(request: HttpRequest) -> HttpResponseBase:
    """Keep the draft in the body under the name in the query, in place of one of that name."""
    name = request.GET.get("name", "").strip()
    if not 0 < len(name) <= 100:
        return _refuse("A name has 1-100 characters.")
    if len(request.body) > MAX_BYTES:
        return _refuse(f"A preset may have at most {MAX_BYTES // 1024} KiB.")
    try:
        draft = read_draft(request.body)
    except ValueError as error:
        return _refuse(f"Not a preset: {error}.")
    key = _find_key(draft, request.user)
    if key is None:
        return _refuse("Choose a key first: a preset belongs to its organization.")
    user_id = int(request.user.pk or 0)
    own = Preset.objects.filter(user=user_id)
    if own.exclude(name=name).count() >= MAX_PRESETS:
        return _refuse(f"You have {MAX_PRESETS} presets. Delete one first.")
    content = msgspec.to_builtins(draft)
    if replace_nul(content) != content:
        return _refuse("A preset cannot hold U+0000.")
    kept = {"organization": key.organization, "draft": content}
    preset, _ = own.update_or_create(user_id=user_id, name=name, defaults=kept)
    return JsonResponse({"id": preset.id, "name": preset.name})


@require_change("view_job", for_members=True)
def delete(request: HttpRequest, preset_id: str) -> HttpResponseBase:
    get_object_or_404(Preset, id=preset_id, user=request.user.pk).delete()
    return JsonResponse({"deleted": True})


def _find_key(draft: Draft, user: Viewer) -> ApiKey | None:
    is_id = draft.key.isascii() and draft.key.isdecimal() and len(draft.key) < 19
    keys = select_managed(ApiKey.objects.select_related("organization"), user)
    return keys.filter(pk=int(draft.key)).first() if is_id else None


def _refuse(message: str) -> JsonResponse:
    return JsonResponse({"error": {"message": message}}, status=400)
