"""The tokens that structure a model's prompts, as opposed to texts that spell them."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from completions.catalog.model_files import ModelFiles, ModelFilesError

Pieces = Sequence[str | int]
"""A prompt as texts, which become no control tokens, and the ids of those between them."""
_RUN = re.compile("0+|1+")
_BRACKETS = ("<", "[", "\uff5c")
"""What a tag that is no special token begins with."""


@dataclass(frozen=True)
class ControlTokens:
    """A model's special tokens, and the tags that its chat template names."""

    ids: Mapping[str, int]
    tags: tuple[str, ...] = ()
    """Those that are no special tokens."""
    normalize: Callable[[str], str] | None = None
    """What the tokenizer does with a text before it looks for some of them."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """The pattern of the longest control token. There may be thousands."""
        return re.compile(_write_pattern(self.ids))

    def split(self, text: str, mask: str) -> Pieces | None:
        """Return the pieces of a prompt; None if its control tokens are those that its whole text
        has. `mask` has a 1 for each character of a text that may hold control tokens."""
        if not self.ids:
            return None
        spans = [match.span() for match in self._pattern.finditer(text)]
        if all("0" not in mask[slice(*span)] for span in spans) and not self._changes(text):
            return None
        pieces: list[str | int] = []
        for run in _RUN.finditer(mask):
            part = text[slice(*run.span())]
            pieces += self.split_own(part) if run[0][0] == "1" else [part]
        return pieces

    def _changes(self, text: str) -> bool:
        """Return whether the tokenizer looks for control tokens in another text."""
        return self.normalize is not None and self.normalize(text) != text

    def split_own(self, text: str) -> Pieces:
        """Return the pieces of a text all of whose control tokens are meant."""
        pieces: list[str | int] = []
        end = 0
        for match in self._pattern.finditer(text):
            pieces += [text[end : match.start()], self.ids[match[0]]]
            end = match.end()
        return [*pieces, text[end:]]


@lru_cache
def find_control_tokens(model: ModelFiles) -> ControlTokens:
    """Return the control tokens of a model. Raises ModelFilesError."""
    try:
        template = f"{model.chat_template} {model.choose_template(has_tools=True)}"
    except ModelFilesError:
        template = ""
    tokenizer = model.tokenizer
    added = tokenizer.get_added_tokens_decoder()
    tags = [
        token.content
        for token in added.values()
        if not token.special and token.content.startswith(_BRACKETS) and token.content in template
    ]
    controls = {id: token for id, token in added.items() if token.special or token.content in tags}
    is_normalized = any(token.normalized for token in controls.values())
    normalizer = tokenizer.normalizer if is_normalized else None
    return ControlTokens(
        ids={token.content: id for id, token in controls.items()},
        tags=tuple(tags),
        normalize=normalizer.normalize_str if normalizer is not None else None,
    )


def _write_pattern(texts: Collection[str]) -> str:
    """Return a pattern of the longest of these texts: as a tree, since the time for a list of
    thousands would grow with its length."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _write_node(tree)


def _write_node(node: Mapping[str, Any]) -> str:
    options = [re.escape(each) + _write_node(below) for each, below in node.items() if each]
    if not options:
        return ""
    if len(options) == 1 and "" not in node:
        return options[0]
    return f"(?:{'|'.join(options)})" + ("?" if "" in node else "")
