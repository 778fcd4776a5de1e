"""Valid bodies of each route, schemas and grammars, which fuzz.py breaks."""

from collections.abc import Sequence
from typing import Any

from tests.acceptance.service import MODEL

CALL = {"model": MODEL, "prompt": [1, 2], "max_tokens": 1}
CHAT = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
}

BODIES: Sequence[tuple[str, dict[str, Any]]] = (
    ("/v1/completions", {**CALL, "logit_bias": {"5": 1}, "stop": ["a"], "n": 2}),
    ("/v1/completions", {**CALL, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {**CALL, "background": True, "metadata": {"a": "b"}}),
    ("/v1/completions", {**CALL, "prompt": [[1, 2], [3]], "logprobs": 2, "echo": True}),
    ("/v1/completions", {**CALL, "stop_regex": ["a+b", "[x-z]{2}"], "min_tokens": 1}),
    ("/v1/completions", {**CALL, "dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]}),
    ("/v1/completions", {**CALL, "logprob_start_len": 0, "token_ids_logprob": [5, 6]}),
    ("/v1/completions", {**CALL, "best_of": 2, "temperature": 0.5, "seed": 7, "top_k": 3}),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {**CHAT, "stream": True, "chat_template_kwargs": {"a": 1}}),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema",
                                     "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "instructions": "a", "metadata": {"a": "b"},
         "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                   {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "1"}]},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": "hi", "stream": True, "store": False,
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}},
                   {"type": "custom", "name": "g", "format": {"type": "text"}}],
         "tool_choice": {"type": "allowed_tools", "mode": "auto",
                         "tools": [{"type": "function", "name": "f"}]},
         "reasoning": {"effort": "low"}, "include": ["message.output_text.logprobs"]},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": "hi", "background": True,
         "text": {"format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}}},
    ),
    (
        "/v1/messages",
        {"model": MODEL, "max_tokens": 1, "system": [{"type": "text", "text": "a"}],
         "tools": [{"name": "f", "input_schema": {"type": "object"}}],
         "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
         "messages": [
             {"role": "user", "content": "hi"},
             {"role": "assistant", "content": [
                 {"type": "thinking", "thinking": "a", "signature": "b"},
                 {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
             {"role": "user", "content": [
                 {"type": "tool_result", "tool_use_id": "t", "content": [
                     {"type": "text", "text": "c"}]}]}]},
    ),
    (
        "/v1/messages",
        {"model": MODEL, "max_tokens": 1, "stream": True, "stop_sequences": ["a"],
         "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"},
         "output_config": {"effort": "low", "format": {
             "type": "json_schema", "schema": {"type": "object"}}},
         "messages": [{"role": "user", "content": "hi"}]},
    ),
    (
        "/v1/messages/count_tokens",
        {"model": MODEL, "system": "a", "messages": [{"role": "user", "content": "hi"}]},
    ),
    (
        "/v1/responses/input_tokens",
        {"model": MODEL, "input": "a", "instructions": "b", "truncation": "auto"},
    ),
    (
        "/v1/conversations",
        {"items": [{"role": "user", "content": "a"}], "metadata": {"a": "b"}},
    ),
    (
        "/generate",
        {"model": MODEL, "input_ids": [1, 2], "return_logprob": True,
         "sampling_params": {"max_new_tokens": 1, "stop": ["a"]}},
    ),
    (
        "/inference/v1/generate",
        {"model": MODEL, "token_ids": [1, 2], "stream": True,
         "sampling_params": {"max_tokens": 1, "logprobs": 1}},
    ),
    ("/v1/completions", {**CALL, "session": "new", "on_drift": "keep"}),
    ("/v1/chat/completions", {**CHAT, "session": "session_1", "after": "root"}),
    (
        "/v1/sessions",
        {"model": MODEL, "expires_after": {"anchor": "last_active_at", "seconds": 60}},
    ),
    (
        "/v1/load_lora_adapter",
        {"lora_name": "a", "lora_path": "b", "load_inplace": True, "base_model_name": MODEL},
    ),
    ("/v1/unload_lora_adapter", {"lora_name": "a", "base_model_name": MODEL}),
    ("/v1/tokenize", {"model": MODEL, "prompt": "hello", "add_special_tokens": True}),
    ("/v1/tokenize", {"model": MODEL, "prompt": ["hello", "you"]}),
    ("/v1/tokenize", {"model": MODEL, "messages": CHAT["messages"]}),
    ("/v1/detokenize", {"model": MODEL, "tokens": [1, 2, 3]}),
    ("/v1/grammars/validate", {"model": MODEL, "regex": "a+", "text": "aa"}),
    (
        "/v1/batches",
        {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
         "metadata": {"a": "b"}},
    ),
    (
        "/v1/batches",
        {"endpoint": "/v1/completions", "completion_window": "5m", "on_late": "accept",
         "requests": [{"custom_id": "a", "body": CALL}, {"body": {**CALL, "n": 2}}]},
    ),
    (
        "/v1/batches",
        {"endpoint": "/v1/responses", "completion_window": "2d", "on_late": "refuse", "requests": [
            {"custom_id": "a", "method": "POST", "url": "/v1/responses",
             "body": {"model": MODEL, "input": "hi", "max_output_tokens": 1}}]},
    ),
    (
        "/v1/batches",
        {"endpoint": "/v1/messages", "requests": [{"custom_id": "a", "body": CHAT}], "pilot": 1,
         "dry_run": True, "receipts": True, "close": True, "on_invalid": "fail"},
    ),
    ("/v1/batches/{batch}/cancel", {}),
    ("/v1/completions", {**CALL, "background": True, "completion_window": "5m",
                         "on_late": "refuse"}),
    ("/v1/chat/completions", {**CHAT, "background": True, "service_tier": "flex"}),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": "hi", "background": True,
         "completion_window": "90m", "on_late": "accept", "service_tier": "flex"},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": "hi", "conversation": "{conversation}"},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": "hi",
         "previous_response_id": "{response}"},
    ),
    ("/v1/responses/{response}/cancel", {}),
    (
        "/v1/responses/compact",
        {"model": MODEL, "instructions": "a", "previous_response_id": "{response}",
         "prompt_cache_key": "a", "cache_salt": "b", "service_tier": "flex",
         "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
    ),
    (
        "/v1/responses",
        {"model": MODEL, "max_output_tokens": 1, "input": [
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABpM0Yj"}]},
    ),
    ("/v1/conversations/{conversation}", {"metadata": {"a": "b"}}),
    (
        "/v1/conversations/{conversation}/items",
        {"items": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "a"},
            {"type": "reasoning", "summary": [], "content": [
                {"type": "reasoning_text", "text": "a"}]}]},
    ),
)  # fmt: skip
"""Paths and bodies. `{name}` stands for an id of `Target`, in a path or as a value."""
SCHEMA = {
    "type": "object", "required": ["a"], "additionalProperties": False,
    "properties": {
        "a": {"enum": [1, "x", None]}, "b": {"type": "string", "pattern": "^[a-c]{2,5}$"},
        "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1, "maxItems": 3},
        "e": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "format": "date"}]},
    },
    "$defs": {"d": {"type": "number", "multipleOf": 2}},
}  # fmt: skip
GRAMMARS: Sequence[tuple[str, Any]] = (
    ("ebnf", 'root ::= "a" [b-d]* ("x" | item)\nitem ::= [^x-z]{2,3} root? | "\\u00e9"+'),
    ("ebnf", 'root ::= TagDispatch(("<a>", item), ("<b>", item))\nitem ::= Regex("[0-9]+")'),
    ("ebnf", 'root ::= Substring("one two") | (=(root)) "y" | list\nlist ::= "," list | ""'),
    ("regex", "(a|b)*c{2,5}[^x-z]+|\\d\\w(?i:q)\\p{Lu}"),
    ("regex", "^(?:[a-f]{1,3}|x?y+?)$"),
    ("json_schema", SCHEMA),
    ("json_schema", {"allOf": [SCHEMA, {"type": "object", "minProperties": 1}]}),
    ("json_object", True),
    ("choice", ["one", "two", "Ümlaut"]),
    ("structural_tag", {"format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "x"},
        {"type": "tag", "begin": "<a>", "end": ["</a>"],
         "content": {"type": "json_schema", "json_schema": SCHEMA}},
        {"type": "repeat", "min": 1, "max": 3,
         "content": {"type": "regex", "pattern": "[a-z]+"}}]}}),
    ("structural_tag", {"format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [
        {"begin": "<f=g>", "end": "</f>", "content": {"type": "grammar",
                                                     "grammar": 'root ::= "a"'}}]}}),
    ("grammar", {"type": "lark", "value": 'start: "a" (B | start)*\nB: /[b-d]+/ & /[^c]*/'}),
    ("grammar", {"type": "llguidance", "value": {"grammars": [{"json_schema": SCHEMA}]}}),
)  # fmt: skip
