"""GGUF files of llama.cpp, read as checkpoints of transformers."""
