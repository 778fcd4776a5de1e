"""The fixtures of the web tier that tests of the edge use."""

from tests.completions.conftest import fake_process, live, owner, served, tiny_model

__all__ = ["fake_process", "live", "owner", "served", "tiny_model"]
