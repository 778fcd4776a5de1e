"""Writes tokenizer.json, which both tiers read, for models that come with another form of their
tokenizer: Mistral's tekken.json, the ranks of tiktoken, a SentencePiece model, or a vocabulary with
its merges."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from completions.contract.token_bytes import make_byte_table
from workers.preparation import sentencepiece_model

TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_TEKKEN = "tekken.json"
_RANKS = ("tiktoken.model", "tokenizer.model")
_OF_TRANSFORMERS = (("vocab.json", "merges.txt"), ("vocab.txt",))
"""Files from which transformers builds a tokenizer without another package."""

_HAN = r"[\p{Han}]+"
_KIMI_CASES = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_KIMI = "|".join(
    [
        _HAN,
        f"{_BEFORE}{_KIMI_CASES[0]}*{_KIMI_CASES[1]}+{_CONTRACTION}",
        f"{_BEFORE}{_KIMI_CASES[0]}+{_KIMI_CASES[1]}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_PATTERNS = {"tokenization_kimi.TikTokenTokenizer": _KIMI}
"""How a text is split before ranks apply, by the class in ``auto_map``: the files of ranks do not
say."""
_RESERVED = "<|reserved_token_{}|>"

_TEKKEN_CONTROL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
"""The first control tokens of files that do not list them."""
_TEKKEN_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}


class ConversionError(Exception):
    """A folder has no tokenizer that can be converted. The message names the file to fetch."""


def convert_tokenizer(folder: Path) -> str | None:
    """Write the tokenizer.json of a folder that has none. Return the name of the file that it was
    made of, or None if there was nothing to do. Raises ConversionError."""
    if (folder / TOKENIZER).is_file():
        return None
    source = _source(folder)
    try:
        tokenizer = _convert(folder, source)
        partial = folder / f".{TOKENIZER}.partial"
        tokenizer.save(str(partial))
        partial.rename(folder / TOKENIZER)
    except ConversionError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        reason = " ".join(str(error).split())
        raise ConversionError(f"{source} cannot be converted: {reason}") from error
    return source


def _source(folder: Path) -> str:
    for name in (_TEKKEN, *_RANKS):
        if (folder / name).is_file():
            return name
    for names in _OF_TRANSFORMERS:
        if all((folder / name).is_file() for name in names):
            return names[0]
    raise ConversionError("it has no tokenizer: none of tokenizer.json, tekken.json, *.model")


def _convert(folder: Path, source: str) -> Tokenizer:
    if source == _TEKKEN:
        return _convert_tekken(folder)
    if source not in _RANKS:
        from transformers import AutoTokenizer  # loads torch

        made: Tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        ).backend_tokenizer
        return made
    data = (folder / source).read_bytes()
    ranks = _read_ranks(data)
    if ranks is not None:
        return _convert_ranks(folder, source, ranks)
    return sentencepiece_model.convert(data, _read_json(folder / "config.json"), _config(folder))


# Ranks of tiktoken -------------------------------------------------------------------------------


class _Special(NamedTuple):
    text: str
    is_special: bool = True


def _read_ranks(data: bytes) -> dict[bytes, int] | None:
    """Read tokens and their ranks, one to a line in Base64; None for another kind of file."""
    try:
        lines = [line.split() for line in data.splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError:
        return None
    return ranks or None


def _convert_ranks(folder: Path, source: str, ranks: Mapping[bytes, int]) -> Tokenizer:
    config = _config(folder)
    classes = (config.get("auto_map") or {}).get("AutoTokenizer") or ()
    named = classes if isinstance(classes, list | tuple) else [classes]
    pattern = next((_PATTERNS[name] for name in named if name in _PATTERNS), None)
    if pattern is None:
        raise ConversionError(
            f"{source} has the ranks of tiktoken, and does not say how its texts are split"
        )
    listed = {
        int(id): _Special(str(token["content"]), bool(token.get("special")))
        for id, token in (config.get("added_tokens_decoder") or {}).items()
    }
    size = _read_json(folder / "config.json").get("vocab_size") or 0
    end = max([size, *(id + 1 for id in listed)])
    added = [listed.get(id, _Special(_RESERVED.format(id))) for id in range(len(ranks), end)]
    tokenizer = _byte_level(ranks, pattern)
    _add(tokenizer, added)
    return tokenizer


def _byte_level(ranks: Mapping[bytes, int], pattern: str, control: Sequence[str] = ()) -> Tokenizer:
    """Make a tokenizer that merges the pair whose joined bytes have the lowest rank, as tiktoken
    does. Ids are ranks, after those of ``control``."""
    characters = {byte: character for character, byte in make_byte_table().items()}

    def text(token: bytes) -> str:
        return "".join(map(characters.__getitem__, token))

    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in parts if pair[0] in ranks and pair[1] in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(text(left), text(right)) for left, right in pairs]
    vocabulary = {text(token): rank + len(control) for token, rank in ranks.items()}
    vocabulary |= {name: id for id, name in enumerate(control)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add(tokenizer: Tokenizer, tokens: Iterable[_Special]) -> None:
    tokenizer.add_tokens(
        [AddedToken(each.text, normalized=False, special=each.is_special) for each in tokens]
    )


# Tekken ------------------------------------------------------------------------------------------


def _convert_tekken(folder: Path) -> Tokenizer:
    """Convert a Tekken file. The ids of control tokens come first, then those of the ranks."""
    document = _read_json(folder / _TEKKEN)
    config = document["config"]
    count = config.get("default_num_special_tokens", 1000)
    stated = {each["rank"]: each["token_str"] for each in document.get("special_tokens") or ()}
    names = stated or dict(enumerate(_TEKKEN_CONTROL))
    control = [names.get(id, f"<SPECIAL_{id}>") for id in range(count)]
    size = config.get("default_vocab_size", len(document["vocab"]) + count)
    ranks = {
        base64.b64decode(each["token_bytes"]): each["rank"]
        for each in document["vocab"][: size - count]
    }
    tokenizer = _byte_level(ranks, config["pattern"], control)
    _add(tokenizer, map(_Special, control))
    begin = _TEKKEN_NAMES["bos_token"]
    if begin in control:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, control.index(begin))],
        )
    if not (folder / _CONFIG).is_file():
        special = {key: token for key, token in _TEKKEN_NAMES.items() if token in control}
        (folder / _CONFIG).write_text(json.dumps(special, indent=2) + "\n", "utf-8")
    return tokenizer


def _config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document
