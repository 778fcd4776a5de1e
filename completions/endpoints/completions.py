"""POST /v1/completions."""

from completions.endpoints.jobs import SubmitView


class CompletionsView(SubmitView):
    """Submit a completion: answered when it is done, as a stream, or at once to be polled."""
