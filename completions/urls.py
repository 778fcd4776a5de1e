"""The API's table of contents."""

from django.urls import path

from completions.endpoints.adapters import LoadAdapterView, UnloadAdapterView
from completions.endpoints.batch_exports import ExportBatchView
from completions.endpoints.batches import (
    BatchesView,
    BatchView,
    CancelBatchView,
    ResubmitBatchView,
    StartBatchView,
)
from completions.endpoints.completions import (
    CancelView,
    CompletionsView,
    CompletionView,
    GenerateView,
)
from completions.endpoints.conversations import (
    ConversationItemsView,
    ConversationItemView,
    ConversationsView,
    ConversationView,
)
from completions.endpoints.files import FileContentView, FilesView, FileView
from completions.endpoints.grammars import ValidateView
from completions.endpoints.health import HealthView, ReadyView
from completions.endpoints.messages import CountTokensView, MessagesView
from completions.endpoints.metrics import MetricsView
from completions.endpoints.models import ModelsView, ModelView
from completions.endpoints.openapi.document import OpenAPIView, show_docs
from completions.endpoints.responses import (
    CancelResponseView,
    CompactView,
    InputItemsView,
    InputTokensView,
    ResponsesView,
    ResponseView,
)
from completions.endpoints.sessions import SessionsView, SessionView, TrajectoryView
from completions.endpoints.tokenization import DetokenizeView, TokenizeView
from completions.endpoints.uploads import (
    CancelUploadView,
    CompleteUploadView,
    PartsView,
    UploadsView,
    UploadView,
)
from completions.endpoints.usage import UsageView
from completions.responses.chat import ChatResponseContext
from completions.responses.native import SGLangContext, VLLMContext

urlpatterns = [
    path("v1/completions", CompletionsView.as_view()),
    path("v1/completions/<str:job_id>", CompletionView.as_view()),
    path("v1/completions/<str:job_id>/cancel", CancelView.as_view()),
    path("v1/chat/completions", CompletionsView.as_view(context_type=ChatResponseContext)),
    path(
        "v1/chat/completions/<str:job_id>", CompletionView.as_view(context_type=ChatResponseContext)
    ),
    path(
        "v1/chat/completions/<str:job_id>/cancel",
        CancelView.as_view(context_type=ChatResponseContext),
    ),
    path("generate", GenerateView.as_view(context_type=SGLangContext)),
    path("inference/v1/generate", GenerateView.as_view(context_type=VLLMContext)),
    path("v1/responses", ResponsesView.as_view()),
    path("v1/responses/input_tokens", InputTokensView.as_view()),
    path("v1/responses/compact", CompactView.as_view()),
    path("v1/responses/<str:job_id>", ResponseView.as_view()),
    path("v1/responses/<str:job_id>/cancel", CancelResponseView.as_view()),
    path("v1/responses/<str:job_id>/input_items", InputItemsView.as_view()),
    path("v1/messages", MessagesView.as_view()),
    path("v1/messages/count_tokens", CountTokensView.as_view()),
    path("v1/conversations", ConversationsView.as_view()),
    path("v1/conversations/<str:conversation_id>", ConversationView.as_view()),
    path("v1/conversations/<str:conversation_id>/items", ConversationItemsView.as_view()),
    path(
        "v1/conversations/<str:conversation_id>/items/<str:item_id>",
        ConversationItemView.as_view(),
    ),
    path("v1/sessions", SessionsView.as_view()),
    path("v1/sessions/<str:session_id>", SessionView.as_view()),
    path("v1/sessions/<str:session_id>/trajectory", TrajectoryView.as_view()),
    path("v1/batches", BatchesView.as_view()),
    path("v1/batches/<str:batch_id>", BatchView.as_view()),
    path("v1/batches/<str:batch_id>/export", ExportBatchView.as_view()),
    path("v1/batches/<str:batch_id>/start", StartBatchView.as_view()),
    path("v1/batches/<str:batch_id>/cancel", CancelBatchView.as_view()),
    path("v1/batches/<str:batch_id>/resubmit", ResubmitBatchView.as_view()),
    path("v1/files", FilesView.as_view()),
    path("v1/files/<str:file_id>", FileView.as_view()),
    path("v1/files/<str:file_id>/content", FileContentView.as_view()),
    path("v1/uploads", UploadsView.as_view()),
    path("v1/uploads/<str:upload_id>", UploadView.as_view()),
    path("v1/uploads/<str:upload_id>/parts", PartsView.as_view()),
    path("v1/uploads/<str:upload_id>/complete", CompleteUploadView.as_view()),
    path("v1/uploads/<str:upload_id>/cancel", CancelUploadView.as_view()),
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:model_id>", ModelView.as_view()),
    path("v1/load_lora_adapter", LoadAdapterView.as_view()),
    path("v1/unload_lora_adapter", UnloadAdapterView.as_view()),
    path("v1/usage", UsageView.as_view()),
    path("v1/tokenize", TokenizeView.as_view()),
    path("v1/detokenize", DetokenizeView.as_view()),
    path("v1/grammars/validate", ValidateView.as_view()),
    path("v1/openapi.json", OpenAPIView.as_view()),
    path("docs", show_docs),
    path("healthz", HealthView.as_view()),
    path("readyz", ReadyView.as_view()),
    path("metrics", MetricsView.as_view()),
]
