"""How short and how long a text of a grammar can be, in a model's tokens."""

from completions.grammars.lengths.bounds import Bounds, find_bounds
from completions.grammars.lengths.ends import LeastTokens, find_least

__all__ = ["Bounds", "LeastTokens", "find_bounds", "find_least"]
