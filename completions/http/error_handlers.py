"""Turns every exception into OpenAI's error envelope, for views and as Django's handlers."""

import errno
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.views import defaults
from redis.exceptions import RedisError
from rest_framework import exceptions as drf

from completions.batches.files import FileLostError
from completions.catalog.model_files import ModelFilesError
from completions.catalog.tokenization import TokenizerProcessError
from completions.exceptions import APIError
from completions.grammars.exceptions import GrammarError
from completions.http import access_log, unknown_paths
from completions.http.bodies import JSONResponse
from completions.requests import validation

logger = logging.getLogger(__name__)

API_PATHS = ("/v1/", "/inference/v1/", "/generate")
"""Beginnings of the paths of the API."""
_FOR_BROWSERS = ("/admin", "/docs", "/static")
_DOCS = "/docs"


def _translate_model_files(exc: ModelFilesError) -> APIError:
    logger.error("%s", exc)
    message = (
        "The model's files are missing or cannot be used; the web tier's log names the cause. "
        "Retry in a minute."
    )
    return APIError("model_loading", message, headers={"Retry-After": "60"})


def _make_unreachable(code: str, what: str) -> Callable[[Exception], APIError]:
    def translate(exc: Exception) -> APIError:
        logger.error("%s: %s", what, exc)
        return APIError(code)

    return translate


def _translate_file_lost(exc: FileLostError) -> APIError:
    logger.error("%s", exc)
    return APIError("internal_error", f"{exc} Send it again.")


def _translate_form_too_large(_: RequestDataTooBig) -> APIError:
    """Django raises it for the fields of a form, and views read other bodies themselves."""
    message = (
        f"The fields of the form are larger than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes in "
        "all. Send content as a file: a part with a file name."
    )
    return APIError("payload_too_large", message)


def _tokenizer_process(exc: TokenizerProcessError) -> APIError:
    logger.error("%s", exc)
    return APIError(
        "server_overloaded",
        f"{exc} Retry after the time given in Retry-After, or send token ids.",
    )


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_disk_full(exc: BaseException) -> bool:
    return isinstance(exc, OSError) and exc.errno in _DISK_FULL


def _translate_os_error(exc: OSError) -> APIError:
    if not is_disk_full(exc):
        logger.error("unhandled %s", type(exc).__name__, exc_info=exc)
        return APIError("internal_error")
    logger.error("no room for files: %s", exc)
    return APIError("storage_full")


def _translate_drf(exc: drf.APIException) -> APIError:
    if exc.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return APIError("internal_error")
    error = APIError("invalid_request", str(exc.detail))
    error.status_code = exc.status_code  # such as 406
    return error


_TRANSLATIONS: tuple[tuple[Any, Callable[[Any], APIError]], ...] = (
    (GrammarError, validation.make_refusal),
    (ModelFilesError, _translate_model_files),
    (TokenizerProcessError, _tokenizer_process),
    (RedisError, _make_unreachable("queue_unavailable", "The queue cannot be reached")),
    (
        # InterfaceError: the connection broke earlier in the same request.
        (OperationalError, InterfaceError),
        _make_unreachable("database_unavailable", "The database cannot be reached"),
    ),
    (OSError, _translate_os_error),
    (FileLostError, _translate_file_lost),
    ((Http404, drf.NotFound), lambda _: APIError("not_found")),
    (
        drf.MethodNotAllowed,
        lambda exc: APIError(
            "method_not_allowed",
            f"{exc.detail} The Allow header lists the methods that are allowed.",
        ),
    ),
    (drf.UnsupportedMediaType, lambda _: APIError("unsupported_media_type")),
    (RequestDataTooBig, _translate_form_too_large),
    (PermissionDenied, lambda _: APIError("permission_denied")),
    (SuspiciousOperation, lambda _: APIError("invalid_request")),
    (drf.APIException, _translate_drf),
)
"""Exception types, each with what turns one into the client's error. The first matching row
counts."""


def make_api_error(exc: Exception) -> APIError:
    """Return the error that a client gets for an exception. An unexpected one is logged."""
    if isinstance(exc, APIError):
        return exc
    for kind, translate in _TRANSLATIONS:
        if isinstance(exc, kind):
            return translate(exc)
    logger.error("unhandled %s", type(exc).__name__, exc_info=exc)
    return APIError("internal_error")


def make_response(exc: Exception, path: str) -> JSONResponse:
    """Return the refusal of a request to `path`."""
    error = make_api_error(exc)
    access_log.note_error(error)
    body = error.envelope(path, access_log.current_request_id())
    return JSONResponse(body, error.status_code, error.headers)


def handle_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer as Django's handler404: a page for browsers, an envelope for API clients."""
    if request.path_info == f"{_DOCS}/":
        return HttpResponseRedirect(_DOCS)
    if request.path_info.startswith(_FOR_BROWSERS):
        return defaults.page_not_found(request, exception)
    if request.path_info.startswith(API_PATHS):
        error = APIError("not_found", unknown_paths.describe(request.path_info))
        return make_response(error, request.path_info)
    response = _choose_not_found(request, exception)
    patch_vary_headers(response, ["Accept"])
    return response


def _choose_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if "text/html" in request.headers.get("Accept", "") and request.path_info != "/":
        return defaults.page_not_found(request, exception)
    message = (
        "There is nothing at this path. Paths of the API begin with /v1/: give your client a base "
        f"URL that ends with /v1. {_DOCS} shows them in a browser."
    )
    return make_response(APIError("not_found", message), request.path_info)


def handle_bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer as Django's handler400, in the same way."""
    if request.path_info.startswith(API_PATHS):
        return make_response(exception, request.path_info)
    return defaults.bad_request(request, exception)


def handle_server_error(request: HttpRequest) -> HttpResponseBase:
    """Answer as Django's handler500, in the same way. Django has logged the exception."""
    if request.path_info.startswith(API_PATHS):
        return make_response(APIError("internal_error"), request.path_info)
    return defaults.server_error(request)
