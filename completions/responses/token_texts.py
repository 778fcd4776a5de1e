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

    def get_text(self, token_id: int) -> str:
        """Return the text of a token; bytes that are not UTF-8 appear as in OpenAI's API:
        `bytes:\\xe2\\x80`."""
        cached = self._known.get(token_id)
        if cached is None:
            raw = self.get_bytes(token_id)
            try:
                cached = raw.decode()
            except UnicodeDecodeError:
                cached = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            self._known[token_id] = cached
        return cached

    def get_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id without a token."""
        return self._bytes.get(token_id)

    @property
    def is_byte_level(self) -> bool:
        return self._bytes.is_byte_level

    def is_visible(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Return whether a token has text."""
        is_skipped = skip_special_tokens and token_id in self._bytes.special_ids
        return not is_skipped and bool(self.get_bytes(token_id))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def find_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> list[int]:
        """Return characters before each token in the decoded text.

        With byte fallback, a byte may make characters invalid that were whole before it. They count
        as they were.
        """
        skip = skip_special_tokens
        stream = DecodeStream(skip_special_tokens=skip)
        offsets, length = [], 0
        for token_id in token_ids:
            offsets.append(length)
            try:
                text = stream.step(self._tokenizer, token_id)
            except Exception:  # noqa: BLE001 - tokenizers raises nothing narrower
                stream = DecodeStream([token_id], skip_special_tokens=skip)
                text = self.decode([token_id], skip)
            length += len(text or "")
        return offsets


@lru_cache
def load_token_texts(model_id: str) -> TokenTexts:
    """Return the texts of a served model's tokens. Raises CatalogError and ModelFilesError."""
    return TokenTexts(model_files.load(model_files.load_catalog().choose(model_id)))
