"""Sessions: whose they are, what they take, when they expire, and their turns."""

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join

from completions.admin.base import ReadOnlyAdmin, make_column
from completions.admin.display import NONE, make_code, make_label
from completions.models import Session
from completions.requests.past import make_choice_id

SHOWN_TURNS = 200


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    empty_text = "A session begins with a request that has the field session."
    list_display = [
        "id",
        "organization",
        "model",
        make_column("Turns", lambda row: row.num_turns),
        "bytes",
        "created_at",
        "expires_at",
    ]
    readonly_fields = ["turns"]
    list_filter = ["organization", "model"]
    list_select_related = ["organization"]
    search_fields = ["id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        rows: QuerySet[Session] = super().get_queryset(request).annotate(num_turns=Count("turns"))
        return rows

    @admin.display(description="Newest turns")
    def turns(self, session: Session) -> str:
        """Show the newest turns, each with a link to its job and the choice that it comes after."""
        rows = session.turns.order_by("-created_at", "-id")[:SHOWN_TURNS]
        turns = rows.values_list("id", "status", "after_turn", "after_index")
        lines = (
            (
                make_code(turn, reverse("operations:job", args=[turn])),
                make_label(status),
                make_choice_id(after, index) if after else "the beginning",
            )
            for turn, status, after, index in turns
        )
        return format_html_join("", "<div>{} {} after {}</div>", lines) or NONE
