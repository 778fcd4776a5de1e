"""The room that an organization has for what its requests store."""

from completions.batches import files
from completions.exceptions import APIError


def require_room(organization_id: int, param: str, size: int = 1) -> None:
    """Raise APIError unless `size` more bytes fit beside what the organization has stored."""
    try:
        files.check_room(organization_id, size, number=0)
    except files.StorageLimitError as error:
        raise APIError("storage_limit_exceeded", f"{error} Delete some first.", param) from error
