"""`manage.py worker_alive`: the heartbeat of this host's worker decides."""

import socket

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.integration


@pytest.fixture
def beat(redis_client, valkey, settings):
    """Writes a heartbeat as a worker of the named host would."""
    settings.REDIS_URL = valkey.url

    def write(host: str) -> None:
        name = f"{host}-17-abcdef01"
        redis_client.sadd(f"{settings.REDIS_PREFIX}workers", name)
        redis_client.set(f"{settings.REDIS_PREFIX}worker:{name}", '{"model": "tiny"}')

    return write


def test_a_heartbeat_of_this_host_is_enough(beat):
    beat(socket.gethostname())
    call_command("worker_alive")


def test_another_host_does_not_count(beat):
    beat("elsewhere")
    with pytest.raises(CommandError, match="sends heartbeats"):
        call_command("worker_alive")


@pytest.mark.parametrize("other", ["gpu-1-2", "gpu-10", "gpu", "a-gpu-1"])
def test_a_host_whose_name_begins_alike_does_not_count(beat, monkeypatch, other):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-1")
    beat(other)
    with pytest.raises(CommandError, match="no worker on gpu-1 sends"):
        call_command("worker_alive")
    beat("gpu-1")
    call_command("worker_alive")


def test_without_redis_it_fails(settings, tmp_path):
    settings.REDIS_URL = f"unix://{tmp_path}/absent.sock"
    with pytest.raises(CommandError, match="Redis does not answer"):
        call_command("worker_alive")
