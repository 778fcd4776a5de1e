"""A path at which there is nothing: the answer names the one that was meant."""

import pytest
from django.test import Client

TWICE = "The path begins with /v1 twice; it should be {}."
END = "The path has a slash at its end; it should be {}."
ROW = "The path has two slashes in a row; it should be {}."


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/chat/completions", TWICE.format("/v1/chat/completions")),
        ("/v1/v1/v1/models/a/b", TWICE.format("/v1/models/a/b")),
        ("/v1/chat/completions/", END.format("/v1/chat/completions")),
        ("/v1/models/", END.format("/v1/models")),
        ("/v1//chat/completions", ROW.format("/v1/chat/completions")),
        ("/v1/embeddings", "does not serve /v1/embeddings. Quire generates text only."),
        ("/v1/audio/speech", "does not serve /v1/audio."),
        ("/v1/fine_tuning/jobs/a", "does not serve /v1/fine_tuning."),
        ("/v1/engines/davinci/completions", "Use /v1/completions"),
        ("/v1/chat/completion", "Did you mean /v1/chat/completions? GET /v1/openapi.json"),
        ("/v1/batch", "Did you mean /v1/batches?"),
        ("/v1/nothing/at/all", "There is nothing at this path. GET /v1/openapi.json"),
        ("/v1/" + "x" * 5000, "There is nothing at this path. GET /v1/openapi.json"),
        ("/v1/v1/", "There is nothing at this path. GET /v1/openapi.json"),
        ("/v1/v1/nothing/", "There is nothing at this path. GET /v1/openapi.json"),
    ],
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_the_answer_has_a_hint(client: Client, path: str, hint: str, method: str) -> None:
    response = getattr(client, method)(path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "not_found")
    assert hint in error["message"]
    assert len(error["message"]) < 500


def test_no_route_that_exists_is_called_missing() -> None:
    from completions.http.unknown_paths import _NOT_SERVED, _list_fixed_paths

    served = {path.split("/")[2] for path in _list_fixed_paths()}
    assert {"chat", "batches", "usage"} <= served
    assert not served & _NOT_SERVED.keys()
