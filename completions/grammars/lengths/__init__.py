"""How short and how long a text of a grammar can be, in a model's tokens."""

from completions.grammars.lengths.bounds import Bounds, find_bounds

__all__ = ["Bounds", "find_bounds"]
