"""The ASGI entry point."""

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

import django
from django.conf import settings
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

django.setup(set_prefix=False)

# These need Django set up.
from completions.endpoints.uploads import MAX_PART_BYTES  # noqa: E402
from project.server.cross_origin import CrossOriginHeaders, Preflights  # noqa: E402
from project.server.gateway import (  # noqa: E402
    MULTIPART_OVERHEAD,
    UPLOAD_PAGE,
    Application,
    Gateway,
)
from project.server.handler import ASGIHandler  # noqa: E402

handler: Any = ASGIHandler()
if settings.CORS_ORIGINS:
    handler = Preflights(handler, settings.CORS_ORIGINS)
application: Any = Gateway(
    cast("Application", handler),
    settings.MAX_BODY_BYTES,
    uploads={
        "/v1/files": settings.MAX_FILE_BYTES + MULTIPART_OVERHEAD,
        UPLOAD_PAGE: settings.MAX_FILE_BYTES + MULTIPART_OVERHEAD,
        "/v1/uploads/[^/]+/parts": MAX_PART_BYTES + MULTIPART_OVERHEAD,
    },
)
if settings.CORS_ORIGINS:
    application = CrossOriginHeaders(application, settings.CORS_ORIGINS)
if settings.TRUSTED_PROXIES:
    application = ProxyHeadersMiddleware(application, settings.TRUSTED_PROXIES)
