"""POST /v1/chat/completions."""

from completions.endpoints.jobs import SubmitView
from completions.responses.chat import ChatView


class ChatCompletionsView(SubmitView):
    """Submit a chat completion: answered when done, as a stream, or at once to be polled; list
    those that outlive their connection."""

    view_type = ChatView
