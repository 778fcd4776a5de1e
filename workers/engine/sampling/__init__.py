"""Logits become tokens: processors, draws and log probabilities."""
