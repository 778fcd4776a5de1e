"""Measurements of the engine and of the service; each module runs with ``python -m``."""
