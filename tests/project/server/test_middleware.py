"""What every page of the admin has, and what it must not have."""

import re

import pytest
from django.test import Client

from tests.acceptance.service import ROOT

INLINE = re.compile(r"<script(?![^>]*\bsrc=)|\son[a-z]+=|javascript:")
"""Not Alpine's attributes, which begin with x-."""


@pytest.mark.parametrize("path", ["/admin/login/", "/admin/nothing/", "/docs", "/nothing"])
def test_every_page_has_a_content_security_policy(client: Client, db: None, path: str) -> None:
    policy = client.get(path, follow=True).headers["Content-Security-Policy"]
    for directive in ("default-src 'self'", "object-src 'none'", "frame-ancestors 'none'"):
        assert directive in policy
    assert "script-src 'self' 'unsafe-inline'" not in policy


def test_a_static_file_and_an_answer_of_the_api_need_none(client: Client, db: None) -> None:
    for path in ("/static/completions/docs.js", "/v1/nothing"):
        response = client.get(path)
        assert response.headers["Content-Type"].split(";")[0] != "text/html"
        response.close()


def test_no_template_has_a_script_that_the_policy_blocks() -> None:
    for template in (ROOT / "completions" / "templates").rglob("*.html"):
        assert not INLINE.search(template.read_text()), template
