"""create_api_key, rotate_api_key and revoke_api_key, as scripts use them."""

import io
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from completions.accounts import keys
from completions.models import ApiKey, AuditEntry, Organization

pytestmark = pytest.mark.usefixtures("served", "db")


def run(name: str, *arguments: str, **options: Any) -> str:
    output = io.StringIO()
    call_command(name, *arguments, stdout=output, **options)
    return output.getvalue()


def test_the_secret_stands_alone_on_standard_output() -> None:
    output = run("create_api_key", "ci")
    secret = output.removesuffix("\n")
    assert keys.is_well_formed(secret)
    key = ApiKey.objects.get()
    assert (key.name, key.organization.name, key.allowed_models) == ("ci", "default", [])
    assert key.expires_at is None


def test_a_second_key_of_one_name_is_made_with_a_warning(capsys: Any) -> None:
    run("create_api_key", "ci")
    assert capsys.readouterr().err == ""
    assert keys.is_well_formed(run("create_api_key", "ci").removesuffix("\n"))
    assert "'default' already has an active key named 'ci'" in capsys.readouterr().err
    run("create_api_key", "ci", "--organization", "other")
    assert capsys.readouterr().err == ""


def test_options_become_fields_of_the_key() -> None:
    before = timezone.now()
    run(
        "create_api_key", "ci", "--organization", "acme", "--models", "tiny, org/slashed",
        "--expires-in-days", "2",
    )  # fmt: skip
    run("create_api_key", "other", "--organization", "acme")
    key = ApiKey.objects.get(name="ci")
    assert Organization.objects.get().api_keys.count() == 2
    assert key.allowed_models == ["tiny", "org/slashed"]
    assert key.expires_at is not None
    assert timedelta(days=2) <= key.expires_at - before < timedelta(days=2, minutes=1)


@pytest.mark.parametrize("days", ["0", "-1", "x", "1.5", "99999"])
def test_bad_days(days: str) -> None:
    with pytest.raises(CommandError, match="not an integer from 1 to 36500"):
        run("create_api_key", "ci", f"--expires-in-days={days}")


def test_unknown_models() -> None:
    with pytest.raises(CommandError, match=r"no model 'none'.*tiny, texts, org/slashed"):
        run("create_api_key", "ci", "--models", "none")
    assert not ApiKey.objects.exists()


def test_limits_become_fields_of_the_key() -> None:
    run(
        "create_api_key", "ci", "--rpm", "5", "--tpm", "600", "--max-concurrency", "2",
        "--max-priority", "7",
    )  # fmt: skip
    key = ApiKey.objects.get()
    assert (key.requests_per_minute, key.tokens_per_minute, key.max_concurrency) == (5, 600, 2)
    assert key.max_priority == 7


def test_permissions_and_budgets() -> None:
    run(
        "create_api_key", "ci", "--role", "admin", "--scopes", "inference,usage:read",
        "--networks", "10.0.0.0/8,::1", "--daily-token-budget", "5", "--monthly-cost-budget", "2.5",
    )  # fmt: skip
    key = ApiKey.objects.get()
    assert (key.role, key.scopes) == ("admin", ["inference", "usage:read"])
    assert key.allowed_networks == ["10.0.0.0/8", "::1"]
    assert (key.daily_token_budget, key.monthly_cost_budget) == (5, Decimal("2.5"))
    assert (key.monthly_token_budget, key.daily_cost_budget) == (None, None)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--scopes", "everything", "not a scope. Use some of: inference"),
        ("--networks", "10.0.0.1/8", "not an address or a network"),
        ("--daily-cost-budget", "x", "not a number"),
        ("--daily-cost-budget", "-1", "greater than or equal to 0"),
    ],
)
def test_bad_permissions(option: str, value: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("create_api_key", "ci", f"{option}={value}")
    assert not ApiKey.objects.exists()


def test_rotating_keeps_the_old_secret_for_a_while() -> None:
    old = run("create_api_key", "ci").strip()
    new = run("rotate_api_key", "ci", "--grace-hours", "2").strip()
    assert keys.is_well_formed(new)
    assert new != old
    key = ApiKey.objects.get()
    assert key.previous_expires_at is not None
    assert timedelta(hours=1) < key.previous_expires_at - timezone.now() <= timedelta(hours=2)
    with pytest.raises(CommandError, match="from 0 to"):
        run("rotate_api_key", "ci", "--grace-hours=-1")


def test_changes_are_attributed_to_the_shell() -> None:
    run("create_api_key", "ci")
    run("revoke_api_key", "ci")
    entries = AuditEntry.objects.order_by("id")
    assert [(entry.action, entry.object_type) for entry in entries] == [
        ("created", "organization"), ("created", "api_key"), ("revoked", "api_key"),
    ]  # fmt: skip
    assert all(entry.actor.startswith("cli") for entry in entries)


def test_bad_priorities() -> None:
    for value in ("-101", "101", "x"):
        with pytest.raises(CommandError, match="-100 to 100"):
            run("create_api_key", "ci", f"--max-priority={value}")


@pytest.mark.parametrize("option", ["--rpm", "--tpm", "--max-concurrency"])
def test_bad_limits(option: str) -> None:
    for value in ("0", "-1", "x", "1.5", "9" * 20):
        with pytest.raises(CommandError, match="not an integer"):
            run("create_api_key", "ci", f"{option}={value}")


def test_revoke_by_name_and_by_beginning() -> None:
    first = run("create_api_key", "one").strip()
    second = run("create_api_key", "two").strip()
    assert "Revoked" in run("revoke_api_key", "one")
    assert [key.name for key in ApiKey.objects.active()] == ["two"]
    for beginning in (first, first[:9]):
        with pytest.raises(CommandError, match="no unrevoked key"):
            run("revoke_api_key", beginning)
    run("revoke_api_key", second[:9])
    assert not ApiKey.objects.active().exists()


@pytest.mark.parametrize("form", ["sk-{id}", "{id}", "{secret}"])
def test_forms_of_a_beginning(form: str) -> None:
    secret = run("create_api_key", "one").strip()
    run("revoke_api_key", form.format(id=secret[3:9], secret=secret))
    assert not ApiKey.objects.active().exists()


@pytest.mark.parametrize("form", ["sk-{id}", "{id}", "{secret}"])
def test_a_rotated_key_has_two_secrets_until_the_grace_ends(form: str) -> None:
    old = run("create_api_key", "one").strip()
    new = run("rotate_api_key", "one").strip()
    output = run("revoke_api_key", form.format(id=old[3:9], secret=old))
    assert not ApiKey.objects.active().exists()
    assert old[:9] in output
    assert new[:9] in output


def test_the_old_secret_names_no_key_after_its_grace() -> None:
    old = run("create_api_key", "one").strip()
    run("rotate_api_key", "one", "--grace-hours=0")
    with pytest.raises(CommandError, match="no unrevoked key"):
        run("revoke_api_key", old)
    assert ApiKey.objects.active().exists()


def test_ambiguity_lists_the_candidates() -> None:
    for organization in ("acme", "zeta"):
        run("create_api_key", "same", "--organization", organization)
    with pytest.raises(CommandError) as caught:
        run("revoke_api_key", "same")
    for key in ApiKey.objects.all():
        assert f"sk-{key.public_id}" in str(caught.value)
        assert key.organization.name in str(caught.value)
    assert ApiKey.objects.active().count() == 2


@pytest.mark.parametrize("wanted", ["nobody", "sk-", ""])
def test_nothing_matches(wanted: str) -> None:
    run("create_api_key", "one")
    with pytest.raises(CommandError, match="no unrevoked key"):
        run("revoke_api_key", wanted)
    assert ApiKey.objects.active().count() == 1
