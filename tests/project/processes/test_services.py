"""The commands of the services."""

import json
import re
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from openai import DEFAULT_CONNECTION_LIMITS

from project.processes import services
from project.processes.endpoint import Endpoint

ROOT = Path(__file__).parents[3]
PROXIES_KEEP = 60
"""Seconds that nginx and the load balancers of clouds keep an idle connection by default."""


def web_options() -> list[str]:
    """The options of uvicorn, without its address."""
    (web,) = (
        each
        for each in services.list_services((), Endpoint("::1", 1), {"web"})
        if each.name == "web"
    )
    command = [str(part) for part in web.command]
    return command[command.index("project.asgi:application") + 1 :]


def pairs(options: list[str]) -> set[str]:
    """Each option with its value."""
    return set(re.findall(r"--[a-z-]+(?: [^-]\S*)?", " ".join(options)))


def test_clients_and_proxies_close_idle_connections_first():
    assert max(PROXIES_KEEP, DEFAULT_CONNECTION_LIMITS.keepalive_expiry) < services.KEEP_ALIVE
    assert f"--timeout-keep-alive {services.KEEP_ALIVE}" in pairs(web_options())


def test_a_variable_that_changes_uvicorn_is_refused(monkeypatch):
    monkeypatch.setenv("UVICORN_PORT", "1234")  # `up` names the port itself
    web_options()
    monkeypatch.setenv("UVICORN_UDS", "/run/web.sock")
    with pytest.raises(ImproperlyConfigured, match=r"UVICORN_UDS is set: .*; unset it"):
        web_options()


def test_the_number_of_web_processes_does_not_come_from_the_environment():
    assert "--workers 1" in pairs(web_options())


def test_the_image_starts_the_web_server_as_up_does():
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", "")
    (command,) = re.findall(r'^CMD (\["uvicorn".*\])$', dockerfile, re.MULTILINE)
    address = {"--host 0.0.0.0", "--port 8000"}
    own = {each for each in pairs(web_options()) if not re.match("--(host|port|fd)", each)}
    assert pairs(json.loads(command)) - address == own
