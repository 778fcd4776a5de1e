"""A tiny model folder, two tenants, the API without Redis, and modules with a database of their
own."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.test import Client, override_settings
from pytest_django.fixtures import Settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from completions.accounts import changes, keys, operator_groups
from completions.catalog import model_files
from completions.delivery import enqueueing
from completions.http import base
from completions.http.process import WebProcess
from completions.jobs.connection import connect
from completions.jobs.operate import QueueLoad
from completions.jobs.workers import LiveModels
from completions.models import ApiKey, Organization
from completions.requests.fair_semaphore import Checks
from completions.usage.refusals import RefusalCounter
from tests import migrated
from tests.acceptance.service import ROOT
from tests.completions import live_api
from tests.completions.bench import PREFIX as BENCH_PREFIX
from tests.completions.bench import Bench, open_bench
from tests.completions.checking import new_checks, shared_validator
from tests.conftest import PrivateValkey
from tests.representatives import stand_for_all

TINY_CONTEXT = 128
CHAT_TEMPLATE = """\
{{ bos_token }}{% for message in messages %}
{% if message.role not in ('system', 'user', 'assistant') %}
{{ raise_exception('unknown role') }}
{% endif %}
<{{ message.role }}>{{ message.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}
"""


def _tiny_tokenizer() -> Tokenizer:
    """One token per byte, and the specials <s> and </s>; BOS is added on request."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the web tier reads: 260 ids, of which 256 is BOS and 257 is EOS."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    _tiny_tokenizer().save(str(folder / "tokenizer.json"))
    documents: dict[str, dict[str, Any]] = {
        "config.json": {"vocab_size": 260, "max_position_embeddings": TINY_CONTEXT},
        "generation_config.json": {"eos_token_id": [257]},
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path, settings: Settings) -> Iterator[None]:
    """models.toml with `tiny`, `texts`, `org/slashed` (the same files) and `absent` (no files)."""
    document = f"""
[models.tiny]
path = "{tiny_model}"
[models.tiny.adapters]
polite = "adapters/polite"
[models.tiny.prices]
prompt = 0.5
completion = 2
[models.texts]
path = "{tiny_model}"
text_prompts = true
tool_format = "glm"
think_tags = ["<think>", "</think>"]
[models."org/slashed"]
path = "{tiny_model}"
[models.absent]
path = "{tmp_path}/absent"
"""
    settings.MODELS_FILE = tmp_path / "models.toml"
    settings.MODELS_FILE.write_text(document)
    yield
    model_files.load.cache_clear()


@pytest.fixture
def roomy(served: None, tiny_model: Path, tmp_path: Path, settings: Settings) -> str:
    """The name of a model that calls tools and thinks, with room for its prompts."""
    folder = tmp_path / "roomy"
    shutil.copytree(tiny_model, folder)
    (folder / "config.json").write_text('{"vocab_size": 260, "max_position_embeddings": 4096}')
    with settings.MODELS_FILE.open("a") as document:
        document.write(
            f'[models.roomy]\npath = "{folder}"\ntool_format = "glm"\n'
            'think_tags = ["<think>", "</think>"]\n'
        )
    model_files.load.cache_clear()
    return "roomy"


@dataclass(frozen=True)
class Tenant:
    organization: Organization
    key: ApiKey
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


def new_tenant(name: str) -> Tenant:
    organization = Organization.objects.create(name=name)
    return Tenant(organization, *changes.create(organization, f"{name}'s key"))


@pytest.fixture
def owner(db: None) -> Tenant:
    return new_tenant("owner")


@pytest.fixture
def stranger(db: None) -> Tenant:
    return new_tenant("stranger")


class FakeProcess:
    """A web process whose Redis is a set of live models."""

    def __init__(self) -> None:
        self.key_ring = keys.KeyRing()
        self.refusals = RefusalCounter()
        self.live: dict[str, str | None] = {"tiny": "torch"}
        self.standby: set[str] = set()
        self.failure: Exception | None = None
        self.is_closing = False
        self.load = QueueLoad(0, 0, 0, 0, {"used_memory": 1, "maxmemory": 0})
        self.validator = shared_validator()
        self.readiness = None
        self.is_migrated = False
        self._checks: dict[asyncio.AbstractEventLoop, Checks] = {}

    @property
    def checks(self) -> Checks:
        """Those of the event loop: the client of Django's tests runs one for each request."""
        return self._checks.setdefault(asyncio.get_running_loop(), new_checks())

    async def list_live_models(self) -> LiveModels:
        if self.failure:
            raise self.failure
        return LiveModels(self.live, self.standby)

    async def measure_queue(self) -> QueueLoad:
        if self.failure:
            raise self.failure
        return self.load

    async def ping(self) -> None:
        if self.failure:
            raise self.failure


@pytest.fixture
def fake_process(monkeypatch: pytest.MonkeyPatch) -> FakeProcess:
    fake = FakeProcess()
    monkeypatch.setattr(base, "find_process", lambda request: fake)
    return fake


@pytest.fixture
def api(owner: Tenant, served: None, fake_process: FakeProcess) -> Client:
    """The API as the owner calls it: without middleware, as project/server/handler.py serves it."""
    client = Client(headers=owner.headers)
    with override_settings(MIDDLEWARE=[]):
        client.handler.load_middleware()
    return client


@pytest.fixture
async def live(valkey, redis_client, settings, monkeypatch, served, owner):
    """The API on one event loop over a real Redis, whose jobs a scripted worker runs."""
    settings.REDIS_URL, settings.REDIS_PREFIX = valkey.url, live_api.PREFIX
    client = connect(valkey.url)
    made = live_api.Live(owner, client)
    admit = enqueueing._admit

    async def admitted(process, job):
        remaining = await admit(process, job)
        await made.dispatch(job.id)
        return remaining

    monkeypatch.setattr(enqueueing, "_admit", admitted)
    made.process = await WebProcess.start()
    monkeypatch.setattr(base, "find_process", lambda request: made.process)
    yield made
    await made.process.close()
    client.close()


_APART = (
    "import runpy, sys, django; django.setup(); runpy.run_module(sys.argv[1], None, '__main__')"
)


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Path:
    """The folder of a storage of the test's own."""
    path, backend = tmp_path / "files", "django.core.files.storage.FileSystemStorage"
    own = {"BACKEND": backend, "OPTIONS": {"location": str(path)}}
    settings.STORAGES = {**settings.STORAGES, "default": own}
    return path


@pytest.fixture
def admin(client: Client, served: None, db: None) -> Client:
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


@pytest.fixture
def in_role(served: None, db: None) -> Callable[[str], Client]:
    """A user of the admin with one role."""

    def make(role: str) -> Client:
        operator_groups.ensure()
        user = User.objects.create_user(role, password="x", is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def bench(
    api: Client,
    valkey: PrivateValkey,
    redis_client: redis.Redis,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    settings.REDIS_PREFIX = BENCH_PREFIX
    with open_bench(api, valkey.url, monkeypatch) as made:
        yield made


@pytest.fixture(params=stand_for_all(["postgresql"], ["sqlite", "postgresql"]))
def run_apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Run a module with empty tables of its own; returns the words that it prints. Its code may run
    in several threads: in the database of pytest-django, they would share a connection.

    On SQLite any transaction that writes is alone; on PostgreSQL it takes a lock.
    """
    on_sqlite = request.param == "sqlite"
    own = nullcontext(f"sqlite:///{tmp_path}/quire.sqlite3")
    with own if on_sqlite else migrated.new_postgresql() as url:
        if on_sqlite:
            migrated.copy_to(tmp_path)
        home = {"QUIRE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}

        def run(module: str, package: str = "endpoints") -> list[str]:
            return subprocess.run(
                [sys.executable, "-c", _APART, f"tests.completions.{package}.{module}"],
                cwd=ROOT,
                env={**os.environ, **home, "DATABASE_URL": url},
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
                check=True,
            ).stdout.split()

        yield run
