"""Every family of causal language models that transformers has, against its own ``generate``."""
