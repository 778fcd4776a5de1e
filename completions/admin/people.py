"""The users of the admin and their groups."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from completions.admin.base import (
    AdminPasswordChangeForm,
    ModelAdmin,
    UserChangeForm,
    UserCreationForm,
)

admin.site.unregister([User, Group])


@admin.register(User)
class OperatorAdmin(UserAdmin[User], ModelAdmin[User]):
    form = UserChangeForm  # type: ignore[assignment] # as in the stubs of UserAdmin itself
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "is_staff", "is_superuser", "last_login"]


@admin.register(Group)
class RoleAdmin(GroupAdmin, ModelAdmin[Group]): ...
