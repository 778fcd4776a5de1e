"""`--to`: the target that a file name or a URL means."""

from pathlib import Path

from completions.batches.export import postgres
from completions.batches.export.encoding import ENCODINGS
from completions.batches.export.row_file import RowFile
from completions.batches.export.rows import ExportError
from completions.batches.export.target import Target

HELP = (
    "one row per line, with a column for each property of the JSON Schema: FILE.jsonl, FILE.csv, "
    "FILE.parquet, or postgresql://USER@HOST/DATABASE/TABLE (the password may be in PGPASSWORD or "
    "~/.pgpass)"
)


def parse_target(to: str) -> Target:
    """Parse the value of --to. Raises ExportError."""
    scheme, separator, _ = to.partition("://")
    if separator and scheme in postgres.SCHEMES:
        return postgres.Table(to)
    path = Path(to)
    if not separator and (encoding := ENCODINGS.get(path.suffix[1:])) is not None:
        return RowFile(path, encoding)
    target = f"{scheme}://..." if separator else to
    names = ", ".join(f"FILE.{name}" for name in ENCODINGS)
    message = f"{target} is neither {names} nor postgresql://USER@HOST/DATABASE/TABLE"
    raise ExportError(f"--to: {message}")
