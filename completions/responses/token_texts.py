"""Text and bytes of single tokens, as log probabilities show them."""

from collections.abc import Sequence
from functools import lru_cache

from tokenizers.decoders import DecodeStream

from completions.catalog import model_files
from completions.catalog.model_files import ModelFiles
from completions.contract.token_bytes import TokenBytes


class TokenTexts:
    """Texts of one model's tokens, each decoded alone."""

    def __init__(self, model: ModelFiles) -> None:
        self._tokenizer = model.tokenizer
        self._bytes = TokenBytes(model.tokenizer)
        self._known: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """The text of a token; bytes that are not UTF-8 appear as in OpenAI's API:
        `bytes:\\xe2\\x80`."""
        known = self._known.get(token_id)
        if known is None:
            raw = self.raw(token_id)
            try:
                known = raw.decode()
            except UnicodeDecodeError:
                known = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            self._known[token_id] = known
        return known

    def raw(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id without a token."""
        return self._bytes.of(token_id)

    def offsets(self, token_ids: Sequence[int]) -> list[int]:
        """Characters before each token in the decoded text, without special tokens.

        With byte fallback, a byte may make characters invalid that were whole before it. They count
        as they were.
        """
        stream = DecodeStream(skip_special_tokens=True)
        offsets, length = [], 0
        for token_id in token_ids:
            offsets.append(length)
            try:
                text = stream.step(self._tokenizer, token_id)
            except Exception:  # noqa: BLE001 - tokenizers raises nothing narrower
                stream = DecodeStream([token_id], skip_special_tokens=True)
                text = self._tokenizer.decode([token_id])
            length += len(text or "")
        return offsets


@lru_cache
def of(model_id: str) -> TokenTexts:
    """The texts of a served model's tokens. Raises CatalogError and ModelFilesError."""
    return TokenTexts(model_files.load(model_files.served_models().choose(model_id)))
