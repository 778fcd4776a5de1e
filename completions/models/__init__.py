"""What lives in SQL, with its constraints and query sets."""

from completions.models.batches import (
    OPEN_LINES,
    UNFINISHED,
    Batch,
    BatchLine,
    BatchStatus,
    LineState,
)
from completions.models.files import File, FilePurpose, FileQuerySet, path_in_storage
from completions.models.jobs import Job, JobStatus, UsageRecord
from completions.models.organizations import ApiKey, ApiKeyQuerySet, Organization

__all__ = [
    "OPEN_LINES",
    "UNFINISHED",
    "ApiKey",
    "ApiKeyQuerySet",
    "Batch",
    "BatchLine",
    "BatchStatus",
    "File",
    "FilePurpose",
    "FileQuerySet",
    "Job",
    "JobStatus",
    "LineState",
    "Organization",
    "UsageRecord",
    "path_in_storage",
]
