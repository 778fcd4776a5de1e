"""Failed logins are limited over all web processes."""

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.contrib.auth.backends import ModelBackend
from django.test import RequestFactory

from project.server import login_throttle

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

PASSWORD = "correct horse battery"


@pytest.fixture
def login(valkey, redis_client, settings, monkeypatch):
    settings.REDIS_URL = valkey.url
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    login_throttle.get_client.cache_clear()
    get_user_model().objects.create_superuser("root", password=PASSWORD)

    def attempt(password, address="10.0.0.1", name="root") -> bool:
        request = RequestFactory(REMOTE_ADDR=address).post("/admin/login/")
        return authenticate(request, username=name, password=password) is not None

    yield attempt
    login_throttle.get_client.cache_clear()


def test_after_five_failures_even_the_right_password_is_refused(login):
    assert login(PASSWORD)
    for _ in range(5):
        assert not login("guess")
    assert not login(PASSWORD)
    assert login(PASSWORD, address="10.0.0.2")


def test_a_login_resets_the_count(login):
    for _ in range(3):
        for _ in range(4):
            assert not login("guess")
        assert login(PASSWORD)


def test_an_address_has_a_limit_over_all_users(login):
    for number in range(30):
        assert not login("guess", name=f"user-{number}")
    assert not login(PASSWORD)


def test_concurrent_attempts_count_like_sequential_ones(login, monkeypatch):
    """All attempts arrive before the first password check ends."""
    looked_at = 0

    def check(*_args, **_options):
        nonlocal looked_at
        looked_at += 1
        if looked_at < 20:
            login("guess")

    monkeypatch.setattr(ModelBackend, "authenticate", check)
    login("guess")
    assert looked_at == 5


def test_an_ipv6_client_is_its_network(login):
    for number in range(5):
        assert not login("guess", address=f"2001:db8:1:2::{number}")
    assert not login(PASSWORD, address="2001:db8:1:2:ffff::1")
    assert login(PASSWORD, address="2001:db8:1:3::1")
    for _ in range(5):
        assert not login("guess", address="::ffff:10.0.0.9")
    assert not login(PASSWORD, address="10.0.0.9")
    assert login(PASSWORD, address="::ffff:10.0.0.8")


def test_refused_tries_and_logins_do_not_add_up(login, redis_client):
    for _ in range(50):
        assert login(PASSWORD)
    for _ in range(50):
        login("guess")
    counts = [int(redis_client.get(key)) for key in redis_client.keys("*login:*")]
    assert max(counts) == 5
    assert all(redis_client.ttl(key) > 0 for key in redis_client.keys("*login:*"))


def test_logins_work_without_redis(login, settings, tmp_path):
    settings.REDIS_URL = f"unix://{tmp_path}/nobody.sock"
    login_throttle.get_client.cache_clear()
    assert not login("guess")
    assert login(PASSWORD)


def test_strangers_at_many_addresses_do_not_lock_a_user_out(login):
    """A user who has logged in here before; others may have to wait."""
    assert login(PASSWORD, address="10.0.0.2")
    for number in range(41):
        for _ in range(5):
            assert not login("guess", address=f"10.0.1.{number}")
    assert not login(PASSWORD, address="10.0.0.3")
    assert login(PASSWORD, address="10.0.0.2")
    for _ in range(5):
        assert not login("guess", address="10.0.0.2")
    assert not login(PASSWORD, address="10.0.0.2")
