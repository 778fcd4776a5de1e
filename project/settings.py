"""All settings, read once from the environment. A bad value fails at start."""

import hashlib
import json
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

from completions.catalog.entries import DTYPES
from project import structured_logs
from project.admin_theme import ADMIN_THEME
from project.environment import Environment, refuse_foreign_variables, refuse_mixed_redis

env = Environment()
BASE_DIR = Path(__file__).resolve().parent.parent


# State ------------------------------------------------------------------------------------------

QUIRE_HOME = Path(env.str("QUIRE_HOME", default=str(BASE_DIR / "var"))).expanduser().resolve()
try:
    QUIRE_HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    raise ImproperlyConfigured(
        f"QUIRE_HOME is '{QUIRE_HOME}'; use a folder that can be made: {error.strerror}"
    ) from error
MODELS_DIR = QUIRE_HOME / "models"
RUN_DIR = QUIRE_HOME / "run"
LOG_DIR = QUIRE_HOME / "log"
MODELS_FILE = Path(env.str("QUIRE_MODELS", default=str(BASE_DIR / "models.toml"))).expanduser()
ADAPTER_SOURCES = Path(
    env.str("QUIRE_ADAPTER_SOURCES", default=str(QUIRE_HOME / "lora"))
).expanduser()
"""Adapters are loaded from folders in it, those of an organization in a folder of its name."""
ADAPTER_STORE = Path(
    env.str("QUIRE_ADAPTER_STORE", default=str(QUIRE_HOME / "adapters"))
).expanduser()
"""Copies of loaded adapters, for web processes, background workers and engine workers."""
DEVICE = env.str("QUIRE_DEVICE", default="auto")
DTYPE = env.parse_choice("QUIRE_DTYPE", DTYPES, default="") or None
if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", DEVICE):
    raise ImproperlyConfigured(f"QUIRE_DEVICE is {DEVICE!r}; use auto, cpu, cuda or cuda:N")
_ranks = env.str("QUIRE_TENSOR_PARALLEL_SIZE", default="")
if not re.fullmatch(r"([1-9]\d{0,3})?", _ranks):
    raise ImproperlyConfigured(f"QUIRE_TENSOR_PARALLEL_SIZE is {_ranks!r}; use a number from 1 on")
TENSOR_PARALLEL_SIZE = int(_ranks) if _ranks else None
"""Replaces `tensor_parallel_size` of the first model."""


def _load_secrets(path: Path) -> dict[str, str]:
    """Return the secrets of an embedded installation. The link lets the first writer win."""
    if not path.exists():
        drawn = {name: secrets.token_urlsafe(48) for name in ("secret_key", "key_pepper")}
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
            json.dump(drawn, draft)
        try:
            os.link(draft.name, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft.name)
    loaded: dict[str, str] = json.loads(path.read_text("utf-8"))
    return loaded


def _get_secret(variable: str, name: str) -> str:
    value = env.str(variable, default="")
    return value or _load_secrets(QUIRE_HOME / "secrets.json")[name]


SECRET_KEY = _get_secret("QUIRE_SECRET_KEY", "secret_key")
KEY_PEPPER = _get_secret("QUIRE_KEY_PEPPER", "key_pepper")
METRICS_TOKEN = env.str("QUIRE_METRICS_TOKEN", default="")
"""Bearer token of `GET /metrics`. Without it the page does not exist."""


# Redis: at REDIS_URL, or the embedded Valkey on a unix socket ------------------------------------


def _make_socket_path() -> Path:
    """Return a path in QUIRE_HOME, or in a temp folder if it exceeds the kernel's 107 bytes."""
    path = RUN_DIR / "valkey.sock"
    if len(os.fsencode(path)) <= 100:
        return path
    digest = hashlib.sha256(os.fsencode(QUIRE_HOME)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"quire-{os.getuid()}-{digest}" / "valkey.sock"


REDIS_URLS = env.parse_redis_urls("REDIS_URLS")
"""Servers of the shards, or nodes of a cluster; empty where the shards are at REDIS_URL."""
REDIS_CLUSTER = env.bool("QUIRE_REDIS_CLUSTER", default=False)
_redis_url = env.parse_redis_url("CELERY_BROKER_URL" if REDIS_URLS else "REDIS_URL")
VALKEY_SOCKET: Path | None = None if _redis_url else _make_socket_path()
REDIS_URL = _redis_url or f"unix://{quote(str(VALKEY_SOCKET))}?db=0"
"""The central Redis: Celery's broker, and what belongs to no shard."""
REDIS_PREFIX = env.str("QUIRE_REDIS_PREFIX", default="quire:")
SHARDS = int(env.at_least("QUIRE_SHARDS", 1, default=max(1, len(REDIS_URLS))))
refuse_foreign_variables(_redis_url)
refuse_mixed_redis(REDIS_URLS, _redis_url, SHARDS, is_cluster=REDIS_CLUSTER)


# Database: SQLite under QUIRE_HOME, or DATABASE_URL ----------------------------------------------


def _make_database() -> dict[str, Any]:
    embedded = f"sqlite:///{quote(str(QUIRE_HOME))}/quire.sqlite3"
    config: dict[str, Any] = env.db("DATABASE_URL", default=embedded)
    if "ENGINE" not in config:
        raise ImproperlyConfigured(
            "DATABASE_URL names no database; use postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        )
    if config["ENGINE"].endswith("sqlite3"):
        config["OPTIONS"] = {
            # A deferred transaction fails when it writes after a read and another has written.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "timeout": 30,  # seconds that a writer waits for others; 60 writers kept one for 10
        }
    elif config["ENGINE"].endswith("postgresql"):
        config["CONN_MAX_AGE"] = 0  # the pool keeps connections; persistent ones leak under ASGI
        config["CONN_HEALTH_CHECKS"] = True
        config["OPTIONS"] = {"pool": {"min_size": 1, "max_size": 8, "timeout": 5}}
    return config


DATABASES = {"default": _make_database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


# Files: a folder in QUIRE_HOME, or any storage backend of Django ---------------------------------

# S3: QUIRE_STORAGE=storages.backends.s3.S3Storage, QUIRE_STORAGE_OPTIONS={"bucket_name": "..."}.
_storage = env.str("QUIRE_STORAGE", default="")
_storage_options = env.json("QUIRE_STORAGE_OPTIONS", default={})
STORAGES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": _storage or "django.core.files.storage.FileSystemStorage",
        "OPTIONS": _storage_options if _storage else {"location": str(QUIRE_HOME / "files")},
    },
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
AWS_S3_MAX_MEMORY_SIZE = 8 * 1024 * 1024
"""Maximum bytes of a file in S3 to read into memory; larger ones use a temporary file."""
FILE_UPLOAD_PERMISSIONS = 0o600
# On the same file system as the files, so that an upload is moved instead of copied.
FILE_UPLOAD_TEMP_DIR = QUIRE_HOME / "tmp"
FILE_UPLOAD_TEMP_DIR.mkdir(mode=0o700, exist_ok=True)
FILE_UPLOAD_HANDLERS = [
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "completions.http.uploads.UploadHandler",
]


# Limits of the service ---------------------------------------------------------------------------

MAX_BODY_BYTES = env.int("QUIRE_MAX_BODY_BYTES", default=8 * 1024 * 1024)
REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
}[
    env.parse_choice(
        "QUIRE_REASONING_FIELDS", ("both", "reasoning", "reasoning_content"), default="both"
    )
]
SPECIAL_TOKENS_IN_CONTENT = env.parse_choice(
    "QUIRE_SPECIAL_TOKENS_IN_CONTENT", ("text", "allow"), default="text"
)
WEBHOOKS_TO_PRIVATE_NETWORKS = env.bool("QUIRE_WEBHOOKS_TO_PRIVATE_NETWORKS", default=False)
MAX_FILE_BYTES = env.int("QUIRE_MAX_FILE_BYTES", default=200 * 1024 * 1024)
MAX_STORED_BYTES = env.int("QUIRE_MAX_STORED_BYTES", default=10 * 1024**3)
"""Bytes of all uploads of one organization."""
MAX_STORED_FILES = env.int("QUIRE_MAX_STORED_FILES", default=10_000)
"""Files of one organization, and uploads that it has not completed."""
MAX_ADAPTERS = env.int("QUIRE_MAX_ADAPTERS", default=100)
"""Adapters that an organization has loaded at a time."""
MAX_ADAPTER_BYTES = env.int("QUIRE_MAX_ADAPTER_BYTES", default=1024**3)
"""Bytes of one adapter's weights."""
MAX_STORED_ADAPTER_BYTES = env.int("QUIRE_MAX_STORED_ADAPTER_BYTES", default=10 * 1024**3)
"""Bytes of the weights of one organization's adapters, with those that jobs may still need."""
MAX_LORA_RANK = env.int("QUIRE_MAX_LORA_RANK", default=256)
ADAPTER_MEMORY = env.int("QUIRE_ADAPTER_MEMORY", default=2 * 1024**3)
"""Bytes that an engine worker has for loaded adapters."""
MAX_BATCH_LINES = env.int("QUIRE_MAX_BATCH_LINES", default=50_000)
MAX_QUEUED_LINES = env.int("QUIRE_MAX_QUEUED_LINES", default=200_000)
"""Lines of the unfinished batches of one organization. A new batch may exceed it once."""
MAX_VALIDATING_BATCHES = 50
MAX_QUEUED_JOBS = env.int("QUIRE_MAX_QUEUED_JOBS", default=10_000)
MAX_QUEUED_INTERACTIVE = env.int("QUIRE_MAX_QUEUED_INTERACTIVE", default=4_000)
"""Calls and streams, queued or running. The rest of MAX_QUEUED_JOBS is for other jobs."""
MAX_QUEUED_BACKGROUND = env.int("QUIRE_MAX_QUEUED_BACKGROUND", default=8_000)
MAX_QUEUED_PER_KEY = env.int("QUIRE_MAX_QUEUED_PER_KEY", default=2_000)
"""Calls, streams and background jobs of one API key, so that others have room."""
MAX_WEB_SOCKETS_PER_KEY = env.int("QUIRE_MAX_WEB_SOCKETS_PER_KEY", default=1_000)
"""WebSocket connections of one API key to one web process."""
MAX_QUEUED_BYTES = env.int("QUIRE_MAX_QUEUED_BYTES", default=0)
"""Bytes of the requests of open jobs; 0 for half of Redis's maxmemory."""
MAX_QUEUED_BYTES_PER_KEY = env.int("QUIRE_MAX_QUEUED_BYTES_PER_KEY", default=0)
"""Bytes of the requests of one API key, and half of an organization's; 0 for an eighth of all."""
REQUEST_TIMEOUT = env.float("QUIRE_REQUEST_TIMEOUT", default=300.0)
"""Seconds for a call or stream; below the 600 s timeout of the openai client."""
BACKGROUND_TIMEOUT = env.float("QUIRE_BACKGROUND_TIMEOUT", default=3600.0)
"""Seconds for a background job, from its submission."""
RESULT_TTL = env.int("QUIRE_RESULT_TTL", default=600)
"""Seconds for which the result of a call or stream is kept."""
BACKGROUND_RESULT_TTL = env.int("QUIRE_BACKGROUND_RESULT_TTL", default=3600)
"""Seconds for which an ended background job is kept, with its result."""
RESPONSE_TTL = env.int("QUIRE_RESPONSE_TTL", default=30 * 24 * 3600)
"""Seconds for which a stored response is kept after its end, and a conversation after its last
use."""
SESSION_TTL = env.int("QUIRE_SESSION_TTL", default=7 * 24 * 3600)
"""Seconds for which a session is kept after its last turn, unless its client says otherwise."""
USAGE_RECORD_DAYS = env.int("QUIRE_USAGE_RECORD_DAYS", default=90)
"""Days for which usage records are kept. Their hourly sums are kept forever."""
USAGE_HOUR_DAYS = env.int("QUIRE_USAGE_HOUR_DAYS", default=400)
"""Days after which the hourly sums of a day are merged into one row."""
STORED_PROMPT_DAYS = env.int("QUIRE_STORED_PROMPT_DAYS", default=30)
"""Days for which prompts are kept, for organizations that have them stored."""
SWAP_MODELS = env.bool("QUIRE_SWAP_MODELS", default=False)
"""Whether `up` starts one worker that loads one model at a time, instead of one for each model."""
SHUTDOWN_GRACE = env.float("QUIRE_SHUTDOWN_GRACE", default=25.0)
"""Seconds for running jobs to finish after SIGTERM. The rest move to another worker."""

MAX_HELD_BYTES = env.int("QUIRE_MAX_HELD_BYTES", default=64 * 1024 * 1024)
"""Bytes of the requests that an engine worker has claimed, on each level of the queue."""

STEP_LIMIT = env.float("QUIRE_STEP_LIMIT", default=120.0)
"""Seconds after which an engine's step counts as stuck and its worker ends."""
STEP_MS = env.at_least("QUIRE_STEP_MS", 1, default=80.0)
"""Milliseconds that a step takes at most while a client reads a stream."""


# Limits for checking a constraint; completions/grammars/limits.py explains each.
GRAMMAR_MAX_BYTES = env.int("QUIRE_GRAMMAR_MAX_BYTES", default=256 * 1024)
GRAMMAR_MAX_DEPTH = env.int("QUIRE_GRAMMAR_MAX_DEPTH", default=64)
GRAMMAR_MAX_CHAIN = env.int("QUIRE_GRAMMAR_MAX_CHAIN", default=500)
GRAMMAR_MAX_ENUM = env.int("QUIRE_GRAMMAR_MAX_ENUM", default=20_000)
GRAMMAR_MAX_PROPERTIES = env.int("QUIRE_GRAMMAR_MAX_PROPERTIES", default=1_000)
GRAMMAR_MAX_REPETITION = env.int("QUIRE_GRAMMAR_MAX_REPETITION", default=100_000)
GRAMMAR_MAX_LENGTH = env.int("QUIRE_GRAMMAR_MAX_LENGTH", default=10_000_000)
GRAMMAR_MAX_MULTIPLE = env.int("QUIRE_GRAMMAR_MAX_MULTIPLE", default=100_000)
GRAMMAR_MAX_FORCED = env.int("QUIRE_GRAMMAR_MAX_FORCED", default=32 * 1024)
GRAMMAR_COMPILE_SECONDS = env.float("QUIRE_GRAMMAR_COMPILE_SECONDS", default=2.0)
GRAMMAR_STEP_WORK = env.int("QUIRE_GRAMMAR_STEP_WORK", default=550_000)
GRAMMAR_STEP_SECONDS = env.float("QUIRE_GRAMMAR_STEP_SECONDS", default=0.05)
GRAMMAR_SECONDS = env.float("QUIRE_GRAMMAR_SECONDS", default=5.0)
GRAMMAR_PROCESSES = env.int("QUIRE_GRAMMAR_PROCESSES", default=2)
BATCH_GRAMMAR_SECONDS = env.float("QUIRE_BATCH_GRAMMAR_SECONDS", default=1800.0)
"""Processor seconds in which the constraints of one batch's file are checked."""
GRAMMAR_CACHE_BYTES = env.int("QUIRE_GRAMMAR_CACHE_BYTES", default=32 * 1024 * 1024)


# Django ------------------------------------------------------------------------------------------

DEBUG = False
ALLOWED_HOSTS = env.list("QUIRE_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("QUIRE_CSRF_TRUSTED_ORIGINS", default=[])
ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
INSTALLED_APPS = [
    "unfold",  # before the admin, whose templates it replaces
    "django.contrib.admin.apps.SimpleAdminConfig",  # project/urls.py loads the admin's pages
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular_sidecar",  # the static files of Swagger UI, for /docs
    "project",
    "completions",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "project.server.middleware.StaticFilesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "project.server.middleware.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "completions/templates"],  # replace some of unfold's
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
# Sign-in by OpenID Connect; completions/sign_in/configuration.py says what each is. Not read with
# `env`, which would take a secret that begins with $ for the name of another variable.
OIDC = {
    name.removeprefix("QUIRE_OIDC_"): os.environ.get(name, "").strip()
    for name in (
        "QUIRE_OIDC_ISSUER",
        "QUIRE_OIDC_CLIENT_ID",
        "QUIRE_OIDC_CLIENT_SECRET",
        "QUIRE_OIDC_CLIENT_SECRET_FILE",
        "QUIRE_OIDC_NAME",
        "QUIRE_OIDC_SCOPES",
        "QUIRE_OIDC_GROUPS_CLAIM",
        "QUIRE_OIDC_ROLES",
    )
}
AUTHENTICATION_BACKENDS = [
    "project.server.login_throttle.ThrottledBackend",
    "completions.accounts.member_permissions.MemberBackend",  # signs nobody in
]
if OIDC["ISSUER"]:
    AUTHENTICATION_BACKENDS.append("completions.sign_in.backend.ProviderBackend")
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
LOGIN_REDIRECT_URL = "/admin/"  # unfold's form does not keep the page that the user came from
# Only unfold uses the cache: for five minutes, its search would show what a user no longer may see.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
UNFOLD = ADMIN_THEME
STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # serves from the packages, without collectstatic
WHITENOISE_AUTOREFRESH = False
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
FORMAT_MODULE_PATH = "project.date_formats"

# Behind a proxy that terminates TLS, QUIRE_HTTPS=true turns on secure cookies and HSTS.
HTTPS = env.bool("QUIRE_HTTPS", default=False)
# Addresses and CIDR networks whose X-Forwarded-For is trusted; keys may be bound to networks.
TRUSTED_PROXIES = env.list("QUIRE_TRUSTED_PROXIES", default=[])
CORS_ORIGINS = env.parse_origins("QUIRE_CORS_ORIGINS")
"""Origins whose pages may use the API; project/server/cross_origin.py answers them."""
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0

SECURE_SSL_REDIRECT = False  # the proxy redirects; probes on the same host use HTTP
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = False  # the domain may have other hosts
SILENCED_SYSTEM_CHECKS = [
    *("security.W005", "security.W008", "security.W021"),  # the two lines above
    *("security.W004", "security.W012", "security.W016"),  # quire.W002 says it once
]
SESSION_COOKIE_AGE = 12 * 3600

# Unfold's Alpine evaluates the attributes of its templates, and charts and bars have style
# attributes. A provider's sign-in begins with a form that redirects to it, perhaps over more hosts.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
if not OIDC["ISSUER"]:
    CONTENT_SECURITY_POLICY += "; form-action 'self'"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": ["completions.http.bodies.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": [],  # views answer with JSONResponse
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

LOG_FORMAT = env.parse_choice("QUIRE_LOG_FORMAT", ("auto", "json", "console"), default="auto")
LOG_LEVEL = env.parse_choice(
    "QUIRE_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), default="INFO"
)
LOGGING = structured_logs.make_configuration(LOG_LEVEL, LOG_FORMAT)
