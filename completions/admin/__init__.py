"""What the operator sees and does, a file per subject. `base.py` is the border to django-unfold."""

from completions.admin import (  # noqa: F401 - importing registers
    audit,
    batches,
    files,
    keys,
    organizations,
    people,
    requests,
    usage,
)
