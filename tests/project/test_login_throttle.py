"""Guessing the admin's password is stopped, in all web processes together."""

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.test import RequestFactory

from project import login_throttle

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

PASSWORD = "correct horse battery"


@pytest.fixture
def login(valkey, redis_client, settings, monkeypatch):
    settings.REDIS_URL = valkey.url
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    login_throttle._client.cache_clear()
    get_user_model().objects.create_superuser("root", password=PASSWORD)

    def attempt(password, address="10.0.0.1", name="root") -> bool:
        request = RequestFactory(REMOTE_ADDR=address).post("/admin/login/")
        return authenticate(request, username=name, password=password) is not None

    yield attempt
    login_throttle._client.cache_clear()


def test_after_five_failures_the_right_password_does_not_help_there(login):
    assert login(PASSWORD)
    for _ in range(5):
        assert not login("guess")
    assert not login(PASSWORD)
    assert login(PASSWORD, address="10.0.0.2")


def test_who_gets_in_starts_anew(login):
    for _ in range(3):
        for _ in range(4):
            assert not login("guess")
        assert login(PASSWORD)


def test_an_address_cannot_try_many_names(login):
    for number in range(30):
        assert not login("guess", name=f"user-{number}")
    assert not login(PASSWORD)


def test_without_redis_the_operator_gets_in(login, settings, tmp_path):
    settings.REDIS_URL = f"unix://{tmp_path}/nobody.sock"
    login_throttle._client.cache_clear()
    assert not login("guess")
    assert login(PASSWORD)
