"""Members of organizations: their table, and the list on the pages of organizations and users."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from completions.accounts import members
from completions.accounts.audit import Actor
from completions.accounts.scope import select_administered
from completions.admin.base import ModelAdmin, TabularInline
from completions.models import Membership


class MembershipForm(forms.ModelForm[Membership]):
    """Asks for a user by name: members of an organization do not see the users of others."""

    who = forms.CharField(
        label="User",
        max_length=254,
        help_text="The name or e-mail address of somebody who has an account here.",
    )

    def clean_who(self) -> str:
        typed = str(self.cleaned_data["who"]).strip()
        active = User.objects.filter(is_active=True)
        found = active.filter(username=typed).first()
        if found is None:
            named = list(active.filter(email__iexact=typed)[:2])
            if len(named) != 1:
                raise ValidationError(
                    f"There is no single account {typed!r}. An operator makes accounts under "
                    "Users; a user of OpenID Connect has one after the first sign-in."
                )
            found = named[0]
        self.instance.user = found
        return typed

    def _get_validation_exclusions(self) -> set[str]:
        """Check the uniqueness of the user, who is not a field of the form."""
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded - {"user"} if "who" in self.cleaned_data else excluded


@admin.register(Membership)
class MembershipAdmin(ModelAdmin[Membership]):
    form = MembershipForm
    list_display = ["user", "organization", "role", "by_provider", "created_at"]
    list_filter = ["role", "organization"]
    list_select_related = ["user", "organization"]
    search_fields = ["user__username", "user__email"]

    def get_fields(self, request: HttpRequest, obj: Membership | None = None) -> Any:
        return ["user", "organization", "role", "by_provider"] if obj else [*_NEW]

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> Any:
        return ["user", "organization", "by_provider"] if obj else []

    def get_form(
        self,
        request: HttpRequest,
        obj: Membership | None = None,
        change: bool = False,
        **kwargs: Any,
    ) -> Any:
        if obj is not None:
            kwargs["form"] = forms.ModelForm
        return super().get_form(request, obj, change, **kwargs)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the organizations whose admin the user is, not all those that they see."""
        field: Any = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if db_field.name == "organization":
            field.queryset = select_administered(field.queryset, request.user)
        return field

    def save_model(self, request: HttpRequest, obj: Membership, form: object, change: bool) -> None:
        members.save(obj, Actor.from_user(request.user))

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        members.remove(obj, Actor.from_user(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        for member in queryset:
            members.remove(member, Actor.from_user(request.user))


_NEW = ("who", "organization", "role")


class MembershipInline(TabularInline[Membership]):
    model = Membership
    extra = 0
    tab = True
    fields = ("organization", "user", "role")
    autocomplete_fields = ("organization", "user")
    verbose_name_plural = "members"


def save_members(request: HttpRequest, formset: Any) -> None:
    """Save what an operator changed in the list of members."""
    actor = Actor.from_user(request.user)
    for member in formset.save(commit=False):
        members.save(member, actor)
    for member in formset.deleted_objects:
        members.remove(member, actor)
