"""What llguidance does not enforce, rewritten to what it does: negations, disjoint unions,
conditions, dependencies, counts.

In this order: `survey` checks all keywords, with `unknown`;
`rewriter` walks the schema and keeps what llguidance enforces (`disjointness` allows a `oneOf`);
`keyword_readings` makes a union of `shapes` of the rest, with `plain_keyword_readings`;
`schema_writer` turns the union into keywords that llguidance enforces, with `counting` and
`overlaps`, or raises CannotWriteError. All combine schemas by `schema_algebra`.
"""

from completions.grammars.json_schema.rewriting.refusals import CannotWriteError
from completions.grammars.json_schema.rewriting.rewriter import Rewritten, reach, rewrite

__all__ = ["CannotWriteError", "Rewritten", "reach", "rewrite"]
