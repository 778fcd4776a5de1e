"""The unit of systemd: it names what is here, and gives the service its time and its folders."""

import configparser
import shutil
import subprocess

import pytest
from django.conf import settings

from tests.acceptance.service import ROOT

UNIT = ROOT / "deploy" / "systemd" / "quire.service"


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment] # names keep their case
    unit.read_string(UNIT.read_text())
    return unit


def test_it_starts_the_service_in_its_own_home() -> None:
    service = read_unit()["Service"]
    python, script, command = service["ExecStart"].split()
    folder = service["WorkingDirectory"]
    assert (ROOT / python.removeprefix(f"{folder}/")).exists()
    assert (ROOT / script).exists()
    assert command == "up"
    home = dict(part.split("=") for part in service["Environment"].split())["QUIRE_HOME"]
    assert service["ReadWritePaths"] == home


def test_it_waits_for_running_jobs() -> None:
    assert int(read_unit()["Service"]["TimeoutStopSec"]) > settings.SHUTDOWN_GRACE


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_reads_it() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False
    )
    # The programs and the user are not on this machine.
    wrong = [line for line in done.stderr.splitlines() if "Unknown" in line or "Invalid" in line]
    assert wrong == []
