"""The admin's login page with the provider's button, the way to the provider and back, and logout.

No page here names a cause that only an operator can mend: the log and the audit trail have it.
"""

import logging
from datetime import timedelta

from django.conf import settings
from django.contrib import admin, auth
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from completions.admin.base import render_page
from completions.sign_in import backend, people, provider
from completions.sign_in.configuration import Configuration, ConfigurationError, load_configuration
from completions.sign_in.people import NotAdmittedError
from completions.sign_in.provider import Provider, ProviderError, UnverifiedError

logger = logging.getLogger(__name__)

ID_TOKEN = "quire_id_token"  # noqa: S105 - the name of a field
"""The session's field with the id token, which the provider wants to see at logout."""


@never_cache
def login(request: HttpRequest) -> HttpResponseBase:
    """Show Django's page, with a button if a provider is configured."""
    configuration = _get_configuration()
    extra = {"provider": configuration.name} if configuration else {}
    response = admin.site.login(request, extra)
    if request.method == "POST" and isinstance(response, HttpResponseRedirect):
        _begin_session(request)
    return response


@never_cache
@require_POST
def start(request: HttpRequest) -> HttpResponseBase:
    """Send the user to the provider."""
    target = request.POST.get("next", "")
    ours = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    next_url = target if ours else settings.LOGIN_REDIRECT_URL
    try:
        url = _get_provider().start(request, _make_absolute(request, "sign_in:callback"), next_url)
    except ProviderError:  # logged where it was raised
        return _show_unreachable(request)
    if not request.user.is_authenticated:  # anyone can make sessions here
        request.session.set_expiry(int(provider.STARTED_FOR))
    return HttpResponseRedirect(url)


@never_cache
@require_GET
def callback(request: HttpRequest) -> HttpResponseBase:
    """Sign the user in whom the provider sends back."""
    provider, address = _get_provider(), str(request.META.get("REMOTE_ADDR", ""))
    try:
        identity = provider.finish(request)
        user = people.admit(identity.claims, provider.configuration, address)
    except ProviderError as error:
        logger.error("a sign-in by OpenID Connect failed: %s", error)
        people.refuse_stranger(f"the provider failed: {error}"[:500], address)
        return _show_unreachable(request)
    except UnverifiedError as error:
        logger.warning("a sign-in was refused: %s", error, extra={"address": address})
        people.refuse_stranger(str(error)[:500], address)
        advice = "Start again from the login page. If it happens twice, ask an administrator."
        return _show_refusal(request, "This sign-in could not be verified.", advice, 400)
    except NotAdmittedError as refusal:
        logger.warning("a sign-in was refused: %s", refusal, extra={"address": address})
        return _show_refusal(request, str(refusal), refusal.advice, 403)
    auth.login(request, user, backend=backend.PATH)
    _begin_session(request)
    request.session[ID_TOKEN] = identity.id_token
    return HttpResponseRedirect(identity.next)


@never_cache
@require_POST
def logout(request: HttpRequest) -> HttpResponseBase:
    """End the session here first, then at the provider that it came from."""
    id_token = request.session.get(ID_TOKEN)
    response = admin.site.logout(request)
    configuration = _get_configuration()
    if id_token and configuration:
        then = _make_absolute(request, "admin:login")
        if url := provider.get_provider(configuration).make_end_session_url(id_token, then):
            return HttpResponseRedirect(url)
    return response


def _begin_session(request: HttpRequest) -> None:
    """Fix the end of the session. By itself, Django moves it with every change of the session."""
    ends = timezone.now() + timedelta(seconds=settings.SESSION_COOKIE_AGE)
    request.session.set_expiry(ends)


def _get_configuration() -> Configuration | None:
    """Return the configuration, if it is right. `manage.py check` says what is wrong with it."""
    try:
        return load_configuration()
    except ConfigurationError as error:
        logger.error("no sign-in by OpenID Connect: %s", error)
        return None


def _get_provider() -> Provider:
    configuration = _get_configuration()
    if configuration is None:
        raise Http404
    return provider.get_provider(configuration)


def _make_absolute(request: HttpRequest, view: str) -> str:
    return request.build_absolute_uri(reverse(view))


def _show_unreachable(request: HttpRequest) -> HttpResponseBase:
    advice = "Try again in a minute, or sign in with a password if you have one."
    return _show_refusal(request, "The sign-in provider does not answer as it should.", advice, 503)


def _show_refusal(request: HttpRequest, message: str, advice: str, status: int) -> HttpResponseBase:
    context: dict[str, object] = {"message": message, "advice": advice}
    return render_page(request, "quire/not_signed_in.html", "Not signed in", context, status)
