"""compose.yaml gives each container no more than it needs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.acceptance.service import ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


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
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE):
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


def test_services_that_write_files_share_a_volume():
    for name in ("web", "cpu-worker"):
        assert "state:/var/lib/quire" in SERVICES[name]["volumes"]


def test_workers_read_the_adapters_that_web_processes_store():
    for name, mode in (("web", ""), ("cpu-worker", ""), ("worker", ":ro")):
        assert f"adapters:/var/lib/quire/adapters{mode}" in SERVICES[name]["volumes"]


def test_the_worker_can_compile_its_kernels():
    (stage,) = re.findall(
        r"^FROM base AS worker\n.*?(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
    assert re.search(r"apt-get install .*gcc libc6-dev", stage)
    (uid,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    (native,) = [each for each in SERVICES["worker"]["tmpfs"] if each.startswith("/var/lib/quire/")]
    path, options = native.split(":")
    assert path == "/var/lib/quire/native"
    assert {"exec", f"uid={uid}"} <= set(options.split(","))  # Docker's own default is noexec
    assert "/tmp" in SERVICES["worker"]["tmpfs"]  # noqa: S108 - in the container


def test_only_one_service_migrates_the_database():
    """On first start PostgreSQL's image runs a server for itself, which listens on no address."""
    check = SERVICES["postgres"]["healthcheck"]["test"]
    assert check[check.index("--host") + 1] == "127.0.0.1"


def test_a_build_installs_what_env_says():
    for service in SERVICES.values():
        if "build" in service:
            arguments = {name: f"${{{name}:-}}" for name in ("OTEL", "EXPORT", "OIDC")}
            assert service["build"]["args"] == arguments


def test_other_settings_reach_every_container_of_ours():
    for service in SERVICES.values():
        if "build" in service:
            assert service["env_file"] == ["deploy/settings.env"]
    given = (ROOT / "deploy" / "settings.env").read_text().splitlines()
    assert all(line.startswith("#") for line in given)
    named = re.findall(r"^# (QUIRE_\w+)=", "\n".join(given), re.MULTILINE)
    settings = (ROOT / "project" / "settings.py").read_text()
    assert named
    for name in named:
        assert f'"{name}"' in settings, name
        # What compose.yaml fills in itself, even with nothing, goes before that file.
        assert not any(name in service.get("environment", {}) for service in SERVICES.values())


def test_every_variable_is_in_the_example():
    text = (ROOT / "compose.yaml").read_text()
    example = (ROOT / "deploy" / "compose.env.example").read_text()
    for variable in re.findall(r"\$\{(\w+)", text):
        assert re.search(rf"^#? ?{variable}=", example, re.MULTILINE), variable


SECRETS = ("QUIRE_SECRET_KEY", "QUIRE_KEY_PEPPER", "POSTGRES_PASSWORD", "REDIS_PASSWORD")


def compose_client() -> list[str] | None:
    """A compose that answers, or none; it needs no daemon to read files."""
    for client in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(client[0]):
            answer = subprocess.run([*client, "version"], capture_output=True)
            if answer.returncode == 0:
                return client
    return None


@pytest.mark.integration
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]])
def test_compose_itself_understands_the_files(files, tmp_path):
    client = compose_client()
    if client is None:
        pytest.skip("no compose client answers")
    environment = {k: v for k, v in os.environ.items() if k not in SECRETS}
    named = [part for file in files for part in ("-f", file)]

    def config(env_file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*client, "--env-file", str(env_file), *named, "config"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )

    example = ROOT / "deploy" / "compose.env.example"
    refused = config(example)
    assert refused.returncode != 0
    assert "deploy/compose.env.example" in refused.stderr
    filled = tmp_path / "env"
    filled.write_text(
        re.sub(rf"^({'|'.join(SECRETS)})=$", r"\1=abc", example.read_text(), flags=re.MULTILINE)
    )
    done = config(filled)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services.keys() == SERVICES.keys()
    assert services["web"]["environment"]["REDIS_URL"] == "redis://:abc@redis:6379/0"
    assert ("deploy" in services["worker"]) == ("compose.gpu.yaml" in files)


def make_environment(name: str, given: dict[str, str]) -> dict[str, str]:
    """A container's variables, as compose fills them in."""

    def fill(match: re.Match[str]) -> str:
        default = match[2] or ""
        return given.get(match[1], default[2:] if default.startswith(":-") else "")

    variables = SERVICES[name]["environment"]
    return {k: re.sub(r"\$\{(\w+)([^}]*)\}", fill, str(v)) for k, v in variables.items()}


@pytest.mark.integration
def test_django_finds_nothing_to_deplore_in_a_deployment_behind_tls(tmp_path):
    given = {
        "QUIRE_SECRET_KEY": "s3cret-" * 10,
        "QUIRE_KEY_PEPPER": "pepper-" * 10,
        "REDIS_PASSWORD": "a",
        "POSTGRES_PASSWORD": "b",
        "QUIRE_HTTPS": "true",
        "QUIRE_ALLOWED_HOSTS": "api.example.com",
        "QUIRE_TRUSTED_PROXIES": "172.18.0.1",
    }
    environment = {**os.environ, **make_environment("web", given), "QUIRE_HOME": str(tmp_path)}
    assert environment["DATABASE_URL"] == "postgres://quire:b@postgres:5432/quire"
    assert environment["QUIRE_ALLOWED_HOSTS"] == "api.example.com,127.0.0.1"
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
    assert not (tmp_path / "secrets.json").exists()  # none had to be made up
