"""Signatures of Standard Webhooks (https://www.standardwebhooks.com), symmetric and version 1."""

import base64
import hashlib
import hmac


def make_headers(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Make the three headers that a receiver verifies. `secret` is `whsec_` and base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b"%s.%d.%s" % (event_id.encode(), timestamp, body)
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
