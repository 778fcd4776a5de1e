"""The audit trail: who changed which key or organization, and how, and who signed in."""

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from completions.admin.base import ReadOnlyAdmin
from completions.admin.display import NONE, make_label
from completions.models import AuditEntry

_TONES = {
    "revoked": "revoked",
    "deleted": "revoked",
    "created": "active",
    "rotated": "draining",
    "used": "running",
    "signed_in": "active",
    "refused": "revoked",
}


@admin.register(AuditEntry)
class AuditAdmin(ReadOnlyAdmin):
    empty_text = "Every change of a key or an organization is listed here."
    list_display = ["at", "actor", "did", "what", "summary"]
    list_display_links = ["at"]
    list_filter = ["action", "object_type", "organization"]
    list_select_related = ["organization"]
    search_fields = ["actor", "object_name"]
    search_help_text = "An actor as admin:NAME, or an object."
    ordering = ["-at", "-id"]
    sortable_by = ()
    show_full_result_count = True
    fields = readonly_fields = ("at", "actor", "did", "what", "organization", "differences")

    @admin.display(description="Did")
    def did(self, entry: AuditEntry) -> SafeString:
        return make_label(_TONES.get(entry.action, ""), entry.get_action_display().lower())

    @admin.display(description="To")
    def what(self, entry: AuditEntry) -> SafeString:
        kind = entry.object_type.replace("_", " ")
        return format_html('{} <span class="q-faint">{}</span>', entry.object_name, kind)

    @admin.display(description="Changes")
    def summary(self, entry: AuditEntry) -> str:
        names = [name.replace("_", " ") for name in entry.changes]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    @admin.display(description="Changes")
    def differences(self, entry: AuditEntry) -> SafeString:
        rows = format_html_join(
            "",
            "<tr><th>{}</th><td>{}</td><td>{}</td></tr>",
            (
                (name.replace("_", " "), _format_value(was), _format_value(now))
                for name, (was, now) in entry.changes.items()
            ),
        )
        return format_html(
            '<table class="q-table"><thead><tr><th></th><th>was</th><th>is</th></tr></thead>'
            "<tbody>{}</tbody></table>",
            rows,
        )


def _format_value(value: object) -> str:
    if value is None or value in ("", []):
        return NONE
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
