"""POST /v1/completions."""

import secrets
from collections.abc import Sequence
from typing import Any

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.endpoints.jobs import Prepared, SubmitView
from completions.requests.completion import CompletionRequestSerializer
from completions.requests.generation import generation_request, view_fields
from completions.requests.ignored_fields import ignored
from completions.responses.completion import View


class CompletionsView(SubmitView):
    """Submit a completion: answered when it is done, as a stream, or at once to be polled."""

    async def prepare(self, body: Any, principal: Principal) -> Prepared:
        return await prepare(body, principal)


async def prepare(body: Any, principal: Principal) -> Prepared:
    """A body validated, and the job that it asks for. Raises APIError and GrammarError."""
    validated = await CompletionRequestSerializer.validate_request(body, principal)
    alternatives, echo = validated["logprobs"], validated["echo"]
    request = await generation_request(validated, alternatives, from_start=echo)
    fields = view_fields(validated)
    if echo:
        fields["echo"] = _texts(validated["prompt"], validated["base_model"])
    if echo and alternatives is not None:
        fields["prompts"] = validated["prompt"]
    return Prepared(
        View(
            id=f"{View.id_prefix}{secrets.token_hex(16)}",
            logprobs=alternatives,
            truncated_tokens=validated["truncated_tokens"],
            **fields,
        ),
        request,
        validated["background"],
        validated["stream"],
        ignored(validated, "parallel_tool_calls", "tools", "tool_choice"),
    )


def _texts(prompts: Sequence[Sequence[int]], model_id: str) -> list[str]:
    """What is echoed: the prompts without their special tokens."""
    model = model_files.load(model_files.served_models().choose(model_id))
    return model.tokenizer.decode_batch([list(prompt) for prompt in prompts])
