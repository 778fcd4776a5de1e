"""Texts as the cells of a table that spreadsheets open."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def escape_formula(text: str) -> str:
    """Quote a text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
