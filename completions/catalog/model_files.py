"""The parts of a model folder that the web tier reads: sizes, stop ids, tokenizer, template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.conf import settings
from tokenizers import Tokenizer

from completions.catalog import config_sizes, entries
from completions.catalog.entries import Catalog, ModelEntry

_FIM_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - the model's spelling
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
"""Tokens before the prefix, the suffix and the gap to fill, as the tokenizers of StarCoder, Qwen,
SantaCoder, DeepSeek and Code Llama spell them."""
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MODELOPT_FILE = "hf_quant_config.json"
"""Where older versions of ModelOpt state how weights are quantized."""
DEFAULT_TEMPLATE, TOOL_TEMPLATE = "default", "tool_use"
"""Names of chat templates, as transformers has them."""
_TEMPLATES = Path(__file__).parent / "templates"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ModelFilesError(Exception):
    """A model's folder is missing or incomplete. The message names what is wrong, and where."""


@dataclass(frozen=True)
class ModelFiles:
    """Properties of one served model. Tokenizer and template are loaded on first use."""

    entry: ModelEntry
    """The model's entry in models.toml."""
    vocab_size: int
    max_model_len: int
    config_eos_token_ids: tuple[int, ...]
    created: int
    """Unix time of config.json."""
    quantization: str | None = None
    """The quantization format, such as `awq` or `gguf Q4_K`; None for weights as trained."""
    routes_experts: bool = False
    """Whether the model is a mixture of experts."""
    model_type: str | None = None
    """The type that config.json names."""

    @property
    def abilities(self) -> dict[str, bool]:
        """Capabilities that only some models have, by their names in the API."""
        return {
            "text_prompts": self.entry.text_prompts,
            "chat": self.chat_template is not None,
            "fim": self.fim_token_ids is not None,
            "routed_experts": self.routes_experts,
        }

    @cached_property
    def weight_version(self) -> str | None:
        """Digest of the weights' checksums, or of the name, size and time of a GGUF file; None if
        `prepare_model` did not write the folder."""
        path = self.entry.folder / "manifest.json"
        if not path.is_file():
            return None
        manifest = _read_json(path)
        files = manifest["files"]
        weights = sorted(each["sha256"] for name, each in files.items() if "safetensors" in name)
        if not weights:
            weights = [json.dumps(manifest["source"], sort_keys=True)]
        return sha256("".join(weights).encode()).hexdigest()[:16]

    @cached_property
    def tokenizer_digest(self) -> str:
        """SHA-256 of the tokenizer file."""
        data = (self.entry.folder / "tokenizer.json").read_bytes()
        return f"sha256:{sha256(data).hexdigest()}"

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All end tokens, from the configurations, the tokenizer and models.toml."""
        name = self.special_tokens.get("eos_token")
        own = self.tokenizer.token_to_id(name) if name else None
        ids = [*self.config_eos_token_ids, *([] if own is None else [own])]
        return tuple(dict.fromkeys([*ids, *self.entry.stop_token_ids]))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.entry.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFilesError(
                f"{path} is missing; `manage.py prepare_model` writes it from other forms"
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ModelFilesError(f"{path} cannot be read: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def longest_token(self) -> int:
        """Length of the longest token in characters or bytes."""
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def fim_token_ids(self) -> tuple[int, int, int] | None:
        """Ids of the fill-in-the-middle tokens (prefix, suffix, gap); None if there are none."""
        for names in _FIM_TOKENS:
            prefix, suffix, middle = map(self.tokenizer.token_to_id, names)
            if prefix is not None and suffix is not None and middle is not None:
                return prefix, suffix, middle
        return None

    @cached_property
    def tokenizer_config(self) -> Mapping[str, object]:
        path = self.entry.folder / "tokenizer_config.json"
        return _read_json(path) if path.is_file() else {}

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template; None if there is none. Quire has those of types of
        models that come with an encoder in Python."""
        template = self.chat_templates.get(DEFAULT_TEMPLATE)
        if template is None and self.model_type is not None:
            path = _TEMPLATES / f"{self.model_type}.jinja"
            template = path.read_text("utf-8") if path.is_file() else None
        return template

    def choose_template(self, has_tools: bool) -> str | None:
        """Return the chat template for a conversation: some models have one for tools."""
        with_tools = self.chat_templates.get(TOOL_TEMPLATE) if has_tools else None
        return with_tools or self.chat_template

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja sources of the folder's chat templates, by name."""
        folder = self.entry.folder
        paths = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
        if (path := folder / "chat_template.jinja").is_file():
            paths[DEFAULT_TEMPLATE] = path
        if paths:
            return {name: path.read_text("utf-8") for name, path in paths.items()}
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several by name, as in older tokenizers
            return {entry["name"]: entry["template"] for entry in template}
        return {DEFAULT_TEMPLATE: template} if isinstance(template, str) else {}

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """Special tokens by name, for chat templates.

        Older folders have them in a file of their own. As in transformers, that file counts more
        than tokenizer_config.json, unless the latter lists all tokens.
        """
        path = self.entry.folder / "special_tokens_map.json"
        sources = [_read_json(path) if path.is_file() else {}, self.tokenizer_config]
        if "added_tokens_decoder" in self.tokenizer_config:
            sources.reverse()
        by_name = {}
        for name in SPECIAL_TOKENS:
            values = (source.get(name) for source in sources)
            texts = (each.get("content") if isinstance(each, dict) else each for each in values)
            if (text := next((each for each in texts if isinstance(each, str)), None)) is not None:
                by_name[name] = text
        return by_name


def load_catalog() -> Catalog:
    """Return models.toml, which is read once per process."""
    return _load_catalog(settings.MODELS_FILE, settings.MODELS_DIR)


@lru_cache
def _load_catalog(path: Path, models_dir: Path) -> Catalog:
    return entries.load(path, models_dir)


@lru_cache
def load(entry: ModelEntry) -> ModelFiles:
    """Read a model's folder, once per process. Raises ModelFilesError."""
    path = entry.folder / "config.json"
    if not path.is_file():
        raise ModelFilesError(
            f"model {entry.id}: {path} is missing; `make setup` fetches what models.toml names"
        )
    config = _read_json(path)
    vocab_size = config_sizes.get_vocab_size(config)
    context = config_sizes.get_context_length(config)
    length = entry.max_model_len or context
    if vocab_size is None:
        raise ModelFilesError(f"model {entry.id}: {path} states no vocab_size")
    if length is None:
        raise ModelFilesError(
            f"model {entry.id}: {path} states no context length; set max_model_len in models.toml"
        )
    for id in entry.stop_token_ids:
        if id >= vocab_size:
            raise ModelFilesError(
                f"model {entry.id}: stop_token_ids holds {id}, beyond its {vocab_size} tokens"
            )
    text = config_sizes.get_text_config(config)
    return ModelFiles(
        entry=entry,
        vocab_size=vocab_size,
        max_model_len=min(length, config_sizes.get_context_limit(config) or length),
        quantization=_detect_quantization(entry.folder, config),
        config_eos_token_ids=_read_eos_token_ids(entry.folder, text),
        routes_experts=any((text.get(key) or 0) > 1 for key in _EXPERT_KEYS),
        created=int(path.stat().st_mtime),
        model_type=config.get("model_type"),
    )


def _detect_quantization(folder: Path, config: Mapping[str, Any]) -> str | None:
    settings = config.get("quantization_config") or {}
    path = folder / _MODELOPT_FILE
    if not settings and path.is_file():
        algorithm = (_read_json(path).get("quantization") or {}).get("quant_algo")
        return "modelopt" if algorithm else None
    method = settings.get("quant_method")
    return f"gguf {settings['type']}" if method == "gguf" and "type" in settings else method


def _read_eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Collect the ids from both configurations, which may differ."""
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    all_ids: list[int] = []
    for source in (generation, config):
        ids = source.get("eos_token_id")
        all_ids += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(all_ids))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, object] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise ModelFilesError(f"cannot read {path}: it holds no JSON object; fetch it again")
    return document
