"""The page of one session: its turns, with links to their jobs."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from completions.admin import sessions
from completions.models import Job, Session
from tests.completions.conftest import Tenant


def make_session(owner: Tenant, turns: int) -> Session:
    now = timezone.now()
    fields = {"organization": owner.organization, "api_key": owner.key, "model": "tiny"}
    session = Session.objects.create(**fields, seconds=60, expires_at=now + timedelta(hours=1))
    for number in range(turns):
        Job.objects.create(
            **fields,
            id=f"chatcmpl-{number}",
            status="completed",
            request={},
            context={"n": 2},
            created_at=now + timedelta(seconds=number),
            deadline_at=now,
            ttl=60,
            session=session,
            after_turn=f"chatcmpl-{number - 1}" if number else "",
            after_index=1,
        )
    return session


def read(admin: Client, session: Session) -> str:
    return admin.get(f"/admin/completions/session/{session.pk}/change/").content.decode()


def test_turns_are_listed_with_links_to_their_jobs(admin: Client, owner: Tenant) -> None:
    page = read(admin, make_session(owner, 2))
    for number, after in ((0, "the beginning"), (1, "chatcmpl-0:1")):
        _, line = page.split(f'href="/admin/jobs/chatcmpl-{number}/"')
        assert f"after {after}</div>" in line.split("<div>")[0]
    assert page.index("/admin/jobs/chatcmpl-1/") < page.index("/admin/jobs/chatcmpl-0/")


def test_only_the_newest_turns_are_listed(
    admin: Client, owner: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SHOWN_TURNS", 3)
    page = read(admin, make_session(owner, 5))
    assert page.count("/admin/jobs/chatcmpl-") == 3
    assert "/admin/jobs/chatcmpl-4/" in page
    assert "/admin/jobs/" not in read(admin, make_session(owner, 0))
