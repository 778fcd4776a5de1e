"""compose.yaml gives each container no more than it needs."""

import re

import pytest
import yaml

from tests.acceptance.service import ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_do_little(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    ours = "build" in service
    assert ours or service["user"] not in ("root", "0")  # our images say so themselves


def test_our_images_do_not_run_as_root():
    for stage in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE):
        if re.match(r".* AS (web|worker)$", stage.splitlines()[0]) if stage.strip() else False:
            assert "\nUSER quire\n" in stage


def test_only_the_web_tier_can_be_reached():
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["web"]
    assert COMPOSE["networks"]["backend"]["internal"] is True
    for name in ("postgres", "redis", "cpu-worker", "worker"):
        assert SERVICES[name]["networks"] == ["backend"]


def test_redis_asks_for_a_password_and_evicts_nothing():
    assert "--requirepass" in SERVICES["redis"]["command"]
    config = (ROOT / "deploy" / "redis.conf").read_text()
    assert "maxmemory-policy noeviction" in config
    assert "appendonly yes" in config


def test_who_writes_files_shares_a_volume():
    for name in ("web", "cpu-worker"):
        assert "state:/var/lib/quire" in SERVICES[name]["volumes"]


def test_every_variable_is_in_the_example():
    text = (ROOT / "compose.yaml").read_text()
    example = (ROOT / "deploy" / "compose.env.example").read_text()
    for variable in re.findall(r"\$\{(\w+)", text):
        assert re.search(rf"^#? ?{variable}=", example, re.MULTILINE), variable
