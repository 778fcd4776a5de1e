"""`--to`: the target that a file name or a URL means."""

from pathlib import Path

from completions.batches.export import parquet, postgres
from completions.batches.export.rows import ExportError
from completions.batches.export.target import Target

HELP = (
    "one row per line, with a column for each property of the JSON Schema: FILE.parquet, or "
    "postgresql://USER@HOST/DATABASE/TABLE (the password may be in PGPASSWORD or ~/.pgpass)"
)


def parse_target(to: str) -> Target:
    """Parse the value of --to. Raises ExportError."""
    scheme, found, _ = to.partition("://")
    if found and scheme in postgres.SCHEMES:
        return postgres.Table(to)
    if not found and to.endswith(parquet.SUFFIX):
        return parquet.ParquetFile(Path(to))
    shown = f"{scheme}://..." if found else to
    message = f"{shown} is neither FILE.parquet nor postgresql://USER@HOST/DATABASE/TABLE"
    raise ExportError(f"--to: {message}")
