# Two images: `web` for the web tier, the background worker and migrations (no torch), `worker` for the engine
# and for preparing models. The torch of requirements.txt brings its CUDA libraries where the package
# index serves that build, so the same worker image runs with and without a GPU.

FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    QUIRE_HOME=/var/lib/quire \
    DJANGO_SETTINGS_MODULE=project.settings
RUN useradd --system --uid 10001 --no-create-home quire \
    && mkdir -p /var/lib/quire/models /var/lib/quire/adapters /var/lib/quire/files /var/lib/quire/tmp /var/lib/quire/native /var/lib/quire/triton \
    && chown -R quire: /var/lib/quire
WORKDIR /app

FROM base AS web-packages
COPY requirements-setup.txt ./
# uv stays out of /opt/venv, and so out of both images.
RUN pip install --no-cache-dir -r requirements-setup.txt && python -m venv /opt/venv
# The service's user may not write bytecode beside the packages, so it is compiled here.
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 VIRTUAL_ENV=/opt/venv
COPY requirements-web.txt requirements-otel.txt requirements-export.txt requirements-oidc.txt constraints.txt ./
# OTEL=1 in .env: both images can trace. EXPORT=1: `manage.py export` writes Parquet. OIDC=1: users of the
# admin can sign in by OpenID Connect.
ARG OTEL
ARG EXPORT
ARG OIDC
RUN uv pip install -r requirements-web.txt ${OTEL:+-r requirements-otel.txt} ${EXPORT:+-r requirements-export.txt} \
    ${OIDC:+-r requirements-oidc.txt} -c constraints.txt

FROM web-packages AS worker-packages
COPY requirements.txt ./
RUN uv pip install -r requirements.txt -c constraints.txt

FROM base AS web
COPY --from=web-packages /opt/venv /opt/venv
COPY manage.py models.toml ./
COPY project project
COPY completions completions
USER quire
EXPOSE 8000
CMD ["uvicorn", "project.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--loop", "uvloop", "--lifespan", "on", "--http", "project.server.http_protocol:Protocol", "--no-access-log", \
     "--ws", "project.server.web_socket_protocol:WebSocketProtocol", \
     "--no-server-header", "--no-use-colors", "--no-proxy-headers", "--timeout-graceful-shutdown", "20", \
     "--timeout-keep-alive", "75", "--workers", "1"]

FROM base AS worker
# On CPUs the engine compiles its C kernels for the machine that it finds; without them it is several times slower.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=worker-packages /opt/venv /opt/venv
COPY manage.py models.toml ./
COPY project project
COPY completions completions
COPY workers workers
USER quire
CMD ["python", "manage.py", "engine_worker"]
