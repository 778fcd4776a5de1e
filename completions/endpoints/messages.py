"""/v1/messages: Anthropic's Messages API, create and count tokens."""

from completions.delivery import rate_limits
from completions.delivery.preferences import Preferences, wants_meta
from completions.endpoints.completions import GenerateView
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.models import Scope
from completions.requests.message import CountTokensRequestObject
from completions.requests.preparation import find_route
from completions.responses.message_object import MessageContext


class MessagesView(GenerateView):
    """Create a message."""

    context_type = MessageContext

    def read_preferences(self, request: APIRequest) -> Preferences:
        """Return the preferences. No message is made in the background: none can be fetched."""
        return Preferences(meta=wants_meta(request))


class CountTokensView(AsyncAPIView):
    """Count the tokens of a message's prompt."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> JSONResponse:
        process = request.process
        self.headers.update(await rate_limits.count_request(process, request.auth))
        with find_route(MessageContext.path).rename_errors():
            count, ignored = await CountTokensRequestObject.validate_request(
                process.checks, request.data, request.auth
            )
        if ignored:
            self.headers["x-ignored-params"] = ", ".join(ignored)
        return JSONResponse({"input_tokens": count})
