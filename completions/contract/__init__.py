"""Shared by the web tier and the engine: sampling ranges, error codes, stop regexes, token bytes,
llguidance's limits and tokenizer, tracing. Imports nothing else of Quire."""
