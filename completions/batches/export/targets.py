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
    scheme, separator, _ = to.partition("://")
    if separator and scheme in postgres.SCHEMES:
        return postgres.Table(to)
    if not separator and to.endswith(parquet.SUFFIX):
        return parquet.ParquetFile(Path(to))
    target = f"{scheme}://..." if separator else to
    message = f"{target} is neither FILE.parquet nor postgresql://USER@HOST/DATABASE/TABLE"
    raise ExportError(f"--to: {message}")
