"""One reading of JSON Schemas for all that walk over them: the table of keywords, typed nodes with
the targets of their references."""
