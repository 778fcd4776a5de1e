"""How short and how long a text of a grammar can be, in a model's tokens."""

from completions.grammars.lengths.bounds import Bounds, bounds_of

__all__ = ["Bounds", "bounds_of"]
