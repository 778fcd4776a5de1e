"""Why a schema cannot be rewritten."""


class CannotWriteError(Exception):
    """llguidance can enforce no equivalent schema."""

    def __init__(self, pointer: str, keyword: str, advice: str) -> None:
        super().__init__(advice)
        self.pointer = pointer
        """The place of the keyword in the client's schema; empty if unknown."""
        self.keyword = keyword
        self.advice = advice
        """The nearest form that works."""
