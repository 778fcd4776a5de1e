"""A conversation to a prompt and a grammar; the generated text back to a message."""
