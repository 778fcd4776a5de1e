"""Who may send a large body to a page."""

from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client

from completions.http.page_users import may_upload
from tests.completions.admin.members import join, sign_in
from tests.completions.conftest import Tenant

pytestmark = pytest.mark.django_db(transaction=True)


def ask(client: Client) -> bool:
    key = client.cookies["sessionid"].value
    return async_to_sync(may_upload)(f"theme=dark; sessionid={key}")


def test_users_who_may_send_batches(
    in_role: Callable[[str], Client],
    owner: Tenant,
) -> None:
    assert ask(in_role("Operator"))
    assert ask(sign_in(join(owner.organization, "ada")))
    assert not ask(in_role("Viewer"))
    nobody = User.objects.create_user("nobody", password="x")
    assert not ask(sign_in(nobody))


def test_a_user_who_was_dismissed(owner: Tenant) -> None:
    member = join(owner.organization, "ada")
    client = sign_in(member)
    assert ask(client)
    member.is_active = False
    member.save()
    assert not ask(client)
    client.logout()


@pytest.mark.parametrize(
    "cookies", ["", "sessionid=", "sessionid=abc", "sessionid=a%00", 'sessionid="a\\000"', "=;;"]
)
def test_no_session(db: None, cookies: str) -> None:
    assert not async_to_sync(may_upload)(cookies)
