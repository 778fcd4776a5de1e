"""Which users of the admin belong to which organization."""

from django.conf import settings
from django.db import models

from completions.models.organizations import Organization


class MemberRole(models.TextChoices):
    MEMBER = "member", "Member: sees the organization, acts with own keys"
    ADMIN = "admin", "Admin: all keys of the organization, and its members"


class Membership(models.Model):
    """A user in an organization. It confines a user without a role to their organizations."""

    organization = models.ForeignKey(Organization, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(
        max_length=10, choices=MemberRole.choices, default=MemberRole.MEMBER.value
    )
    by_provider = models.BooleanField(
        "from OpenID Connect",
        default=False,
        editable=False,
        help_text="Follows the user's groups at each sign-in.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization", "user"]
        verbose_name = "member"
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "user"],
                name="one_membership_per_user_and_organization",
                violation_error_message="This user is a member already.",
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.organization}"
