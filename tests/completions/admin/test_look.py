"""The frame around all pages: served by the service itself, nothing from elsewhere."""

import re

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

ELSEWHERE = re.compile(r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//[^"')\s]+""")
PAGES = [
    "/admin/",
    "/admin/completions/apikey/",
    "/admin/completions/apikey/add/",
    "/admin/completions/organization/",
    "/admin/completions/usagerecord/",
    "/admin/completions/batch/",
    "/admin/auth/user/",
    "/admin/auth/user/add/",
    "/admin/auth/group/",
]


@pytest.mark.parametrize("path", PAGES)
def test_no_asset_comes_from_elsewhere(admin: Client, path: str) -> None:
    page = admin.get(path).content.decode()
    assert ELSEWHERE.findall(page) == []
    assets = re.findall(r'(?:src|href)="/static/([^"?#]+)', page)
    assert any(asset.endswith("chart.js") for asset in assets)
    missing = [asset for asset in assets if finders.find(asset) is None]
    assert missing == []


def test_styles_ask_for_nothing_elsewhere(admin: Client) -> None:
    sheets = re.findall(r'href="/static/([^"]+\.css)"', admin.get("/admin/").content.decode())
    assert "completions/admin.css" in sheets
    for sheet in sheets:
        path = finders.find(sheet)
        assert path is not None
        with open(path, encoding="utf-8") as css:
            assert not re.search(r"url\(\s*[\"']?(https?:)?//", css.read())


def test_the_brand_is_ours(admin: Client, db: None) -> None:
    assert "Quire" in admin.get("/admin/").content.decode()
    assert "Django administration" not in Client().get("/admin/login/").content.decode()


def test_users_who_are_not_staff_see_nothing(client: Client, db: None) -> None:
    client.force_login(User.objects.create_user("visitor", password="x"))
    for path in PAGES:
        assert client.get(path).status_code == 302
