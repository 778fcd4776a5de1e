"""Who sends a large body to a page, from the cookies alone: Django reads the body before its
middleware knows the user."""

from functools import partial
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest, parse_cookie

from completions.database.release import run_and_release


async def may_upload(cookies: str) -> bool:
    """Return whether a Cookie header has the session of a user who may send batches."""
    key = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")
    if not (key.isascii() and key.isalnum()):
        return False
    return await run_and_release(partial(_may_send_batches, key))


def _may_send_batches(session_key: str) -> bool:
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    return user.is_staff and user.has_perm("completions.change_batch")
