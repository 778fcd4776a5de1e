"""Authenticates the caller, and checks the API key's scope and networks."""

from completions.accounts import keys
from completions.exceptions import APIError
from completions.http import access_log
from completions.http.process import WebProcess
from completions.models import Scope

_MESSAGES = {
    keys.Refusal.MISSING: (
        "Send your API key in the header Authorization: Bearer sk-..., or in x-api-key."
    ),
    keys.Refusal.INVALID: "Incorrect API key provided: {masked}. Check that it was copied whole.",
    keys.Refusal.REVOKED: (
        "The API key {masked} was revoked, or its organization is suspended. "
        "Ask your administrator."
    ),
    keys.Refusal.EXPIRED: "The API key {masked} has expired. Ask your administrator for another.",
}


def permit(principal: keys.Principal, scope: Scope | None, address: str) -> None:
    """Raise APIError unless the key has the scope and may be used from the IP address, if known."""
    if scope is not None and scope not in principal.scopes:
        raise APIError(
            "permission_denied",
            f"This API key lacks the scope {scope.value!r}, which this route needs. Use another "
            "key, or ask your administrator.",
        )
    if not principal.may_come_from(address):
        raise APIError(
            "permission_denied",
            f"This API key may not be used from {address or 'here'}. Call from one of its "
            "networks, or ask your administrator.",
        )


async def authenticate(
    process: WebProcess, authorization: str, api_key: str = ""
) -> keys.Principal:
    """Return the caller with these headers, Authorization or else x-api-key. Raises APIError."""
    secret = parse_bearer(authorization) or api_key.strip()
    result = await process.key_ring.verify(secret) if secret else keys.Refusal.MISSING
    if isinstance(result, keys.Principal):
        access_log.note_caller(result.key_id, result.organization_id, result.store_prompts)
        return result
    masked = keys.mask_secret(secret)
    if result is not keys.Refusal.MISSING:
        access_log.note(wrong_key=masked)
    message = _MESSAGES[result].format(masked=masked)
    raise APIError(result.value, message)


def parse_bearer(header: str) -> str:
    """Return the token of an Authorization header, or an empty string."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
