"""Signatures of Standard Webhooks (https://www.standardwebhooks.com), symmetric and version 1."""

import base64
import hashlib
import hmac
from collections.abc import Iterable


def make_headers(
    secrets: Iterable[str], event_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Make the three headers that a receiver verifies, with a signature for each secret, of which
    one has to be right. A secret is `whsec_` and base64."""
    signed = b"%s.%d.%s" % (event_id.encode(), timestamp, body)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{_sign(secret, signed)}" for secret in secrets),
    }


def _sign(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
