"""The operator's pages, one file per subject. Only `base.py` imports django-unfold."""

from completions.admin import (  # noqa: F401 - importing registers
    audit,
    batches,
    keys,
    members,
    organizations,
    requests,
    sessions,
    webhooks,
)
from completions.admin.usage import hours  # noqa: F401
