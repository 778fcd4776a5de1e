"""Turns a conversation into a prompt and a grammar, and generated text into a message."""
