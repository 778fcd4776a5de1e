"""Presets: whose they are, who opens them by a link, and what is refused."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from completions.accounts import members
from completions.accounts.audit import SERVICE
from completions.console import presets
from completions.models import MemberRole, Preset
from tests.completions.admin.members import join, sign_in
from tests.completions.conftest import Tenant

SAVE = "/admin/playground/presets/"
pytestmark = pytest.mark.usefixtures("served")


def make_draft(owner: Tenant, **changes: Any) -> dict[str, Any]:
    side = {"model": "tiny", "kind": "", "texts": {}, "only_checks": False}
    return {"key": str(owner.key.pk), "sides": [side], "values": {"seed": "7"}, **changes}


def save(client: Client, draft: object, name: str = "mine") -> tuple[int, Any]:
    response = client.post(f"{SAVE}?name={name}", json.dumps(draft), content_type="text/json")
    return response.status_code, response.json()


def given(client: Client, preset: str) -> Any:
    page = client.get(f"/admin/playground/?preset={preset}").content.decode()
    script = page.partition('<script id="given" type="application/json">')[2]
    return json.loads(script.partition("</script>")[0])


@pytest.fixture
def grace(owner: Tenant) -> User:
    return join(owner.organization, "grace", MemberRole.ADMIN)


def test_a_preset_is_saved_opened_and_deleted(grace: User, owner: Tenant) -> None:
    client = sign_in(grace)
    status, made = save(client, make_draft(owner))
    assert status == 200
    assert given(client, made["id"])["values"] == {"seed": "7"}
    again = save(client, make_draft(owner, values={"seed": "8"}))[1]
    assert again == made
    assert given(client, made["id"])["values"] == {"seed": "8"}
    assert f'<option value="{made["id"]}"' in client.get("/admin/playground/").content.decode()
    assert client.post(f"{SAVE}{made['id']}/delete/").json() == {"deleted": True}
    assert given(client, made["id"]) is None


def test_who_opens_a_link(
    grace: User,
    owner: Tenant,
    stranger: Tenant,
    admin: Client,
) -> None:
    made = save(sign_in(grace), make_draft(owner))[1]["id"]
    colleague = sign_in(join(owner.organization, "ada"))
    outsider = sign_in(join(stranger.organization, "eve", MemberRole.ADMIN))
    assert given(colleague, made) is not None
    assert given(admin, made) is not None
    assert given(outsider, made) is None
    for client in (colleague, admin, outsider):  # a list has one's own only
        assert f'<option value="{made}"' not in client.get("/admin/playground/").content.decode()
        assert client.post(f"{SAVE}{made}/delete/").status_code == 404
    members.remove(grace.memberships.get(), SERVICE)
    join(stranger.organization, "grace")
    assert given(sign_in(User.objects.get(pk=grace.pk)), made) is None


def test_a_viewer_keeps_presets(in_role: Any, owner: Tenant) -> None:
    assert save(in_role("Viewer"), make_draft(owner))[0] == 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": ""}, "Choose a key"),
        ({"key": "9" * 30}, "Choose a key"),
        ({"sides": []}, "one or two sides"),
        ({"mode": "none"}, "mode"),
        ({"other": 1}, "other"),
        ({"values": {"seed": 7}}, "str"),
        ({"values": {"stop": "\0"}}, "U+0000"),
        ({"values": {"stop": "x" * presets.MAX_BYTES}}, "KiB"),
    ],
    ids=str,
)
def test_what_is_no_preset(grace: User, owner: Tenant, changes: Any, said: str) -> None:
    status, answer = save(sign_in(grace), make_draft(owner, **changes))
    assert status == 400
    assert said in answer["error"]["message"]
    assert not Preset.objects.exists()


def test_names_and_number_are_bounded(
    grace: User, owner: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "MAX_PRESETS", 1)
    client = sign_in(grace)
    assert save(client, make_draft(owner), "")[0] == 400
    assert save(client, make_draft(owner), "n" * 101)[0] == 400
    assert save(client, make_draft(owner), "first")[0] == 200
    assert save(client, make_draft(owner), "first")[0] == 200
    assert "Delete one" in save(client, make_draft(owner), "second")[1]["error"]["message"]


def test_a_key_of_others_gives_no_organization(owner: Tenant, stranger: Tenant) -> None:
    member = sign_in(join(owner.organization, "ada"))
    for tenant in (owner, stranger):  # a colleague's key, and a stranger's
        assert save(member, make_draft(tenant))[0] == 400
