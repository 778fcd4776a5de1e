"""The tables in SQL, with their constraints and query sets."""

from completions.models.audit import AuditAction, AuditEntry
from completions.models.batches import (
    OPEN_LINES,
    UNFINISHED,
    Batch,
    BatchLine,
    BatchStatus,
    LineState,
)
from completions.models.files import File, FilePurpose, FileQuerySet, path_in_storage
from completions.models.jobs import Job, JobStatus
from completions.models.organizations import (
    ApiKey,
    ApiKeyQuerySet,
    Organization,
    Role,
    Scope,
)
from completions.models.usage import LoadSample, StoredPrompt, UsageHour, UsageRecord

__all__ = [
    "OPEN_LINES",
    "UNFINISHED",
    "ApiKey",
    "ApiKeyQuerySet",
    "AuditAction",
    "AuditEntry",
    "Batch",
    "BatchLine",
    "BatchStatus",
    "File",
    "FilePurpose",
    "FileQuerySet",
    "Job",
    "JobStatus",
    "LineState",
    "LoadSample",
    "Organization",
    "Role",
    "Scope",
    "StoredPrompt",
    "UsageHour",
    "UsageRecord",
    "path_in_storage",
]
