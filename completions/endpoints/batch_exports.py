"""/v1/batches/{id}/export: the results of an ended batch as rows of typed columns."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from completions.batches import files
from completions.batches.export.encoding import ENCODINGS, Encoding
from completions.batches.export.rows import ExportError, Source, open_source
from completions.database.release import release
from completions.endpoints.batches import find_batch
from completions.exceptions import APIError, invalid_parameter
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.query import refuse_unknown
from completions.models import Scope

DEFAULT_FORMAT = "jsonl"


class ExportBatchView(AsyncAPIView):
    """Stream a row for each line of an ended batch."""

    scope = Scope.BATCHES

    async def get(self, request: APIRequest, batch_id: str) -> StreamingHttpResponse:
        batch = await find_batch(batch_id, request.auth)
        refuse_unknown(request, ["format"])
        name = request.query_params.get("format", DEFAULT_FORMAT)
        if (encoding := ENCODINGS.get(name)) is None:
            raise invalid_parameter("format", name, f"one of {', '.join(ENCODINGS)}")
        try:
            source = await sync_to_async(open_source)(batch)
            await release()
            pieces = await request.process.checks.run(request.owner, _begin, source, encoding)
        except ExportError as error:
            raise make_export_error(error) from error
        return make_download(pieces, encoding, f"{batch.id}.{name}")


def _begin(source: Source, encoding: Encoding) -> Iterator[bytes]:
    columns = source.columns()
    return encoding.begin(source.rows(columns), columns)


def make_export_error(error: ExportError) -> APIError:
    return APIError(
        error.code, f"{error}.", "format" if error.code == "unsupported_value" else "id"
    )


def make_download(
    pieces: Iterator[bytes], encoding: Encoding, filename: str
) -> StreamingHttpResponse:
    """Return a response that makes one piece after another, each in a thread."""

    async def read() -> AsyncIterator[bytes]:
        while piece := await files.read_next_piece(pieces):
            await release()
            yield piece

    headers = {
        "Content-Disposition": f'attachment; filename="{filename}"',
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingHttpResponse(read(), content_type=encoding.media_type, headers=headers)
