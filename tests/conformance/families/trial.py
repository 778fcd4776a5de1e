"""One configuration through the engine, against ``generate``."""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.conformance.families.shapes import CONTEXT, tiny
from tests.conformance.families.table import Case
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import EOS, byte_level_tokenizer
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.build import build_engine
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.checkpoints.reading.model_class import model_class
from workers.engine.checkpoints.reading.model_folder import read_config, read_tokenizer
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import UnsupportedModel

LENGTHS = (5, 17, 33, 48, 64, 90)
NEW_TOKENS = 16
CONSTRAINED = (
    (1, "start: /[a-z]{3} [a-z]{2}[0-9]{3}/"),
    (3, 'start: "the forced text: " /[a-z ]{5,9}/ "."'),
)
"""By the number of a prompt: a grammar without and one with forced text."""
IN_C = {
    "hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "initializer_range": 0.1,
    "vocab_size": 416,
}  # fmt: skip
LATENTS_IN_C = {
    "head_dim": None, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32, "v_head_dim": 48,
}  # fmt: skip
INPUTS_IN_C = {"hidden_size_per_layer_input": 32}
NOISES, MARGIN = 2.0, 0.01
_SHORT = ("short_factor", "short_mscale")
TIE = 1e-4
"""Logits that differ by less may change places."""

CONFIG = EngineConfig(
    device="cpu", dtype="float32", max_model_len=CONTEXT, max_num_seqs=8,
    max_num_batched_tokens=40, block_size=4, kv_cache_bytes=2**25,
)  # fmt: skip
CONFIG_IN_BFLOAT16 = replace(CONFIG, dtype="bfloat16", block_size=16)


@dataclass
class Verdict:
    """What became of a configuration: equal, or why not."""

    forward: str = ""
    failures: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "equal" if not self.failures else self.failures[0]


def save(folder: Path, case: Case, **sizes: Any) -> Path:
    """Write a random model of the configuration, and the tokenizer of the tiny models."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), eos_token=EOS)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = tiny(case.family, {**case.options, **sizes})
    make: Any = model_class(config).from_config
    model = make(config, dtype=torch.float32).eval()
    _spread_logits(model)
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def _spread_logits(model: Any) -> None:
    """Scale the output layer so that logits are well apart, and no token always wins."""
    head = model.get_output_embeddings()
    inner = model.get_input_embeddings()
    if head is not None and head.weight is not inner.weight:
        head.weight.normal_(0, 0.3)
        if getattr(head, "bias", None) is not None:
            head.bias.zero_()


def _read(path: Path, dtype: torch.dtype) -> Any:
    """The model as transformers runs it, with the factors of longrope for long sequences: the
    engine has them for sequences of any length, since some may become longer than the short
    ones allow."""
    config = read_config(path)
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    rope |= {name: rope[f"long_{name[6:]}"] for name in _SHORT if name in rope}
    read: Any = model_class(config).from_pretrained
    return read(path, config=config, dtype=dtype).eval()


def try_case(folder: Path, case: Case) -> Verdict:
    """Compare greedy texts: one batch of unequal prompts in chunks, the same in another order from
    the prefix cache, and constrained ones."""
    path = save(folder, case)
    model = _read(path, torch.float32)
    model.generation_config.forced_eos_token_id = None  # BART's, which no engine would know of
    try:
        engine = build_engine(path, CONFIG)
    except UnsupportedModel as error:
        return Verdict("refused", [str(error)])
    verdict = Verdict(engine.forward)
    prompts = [greedy.prompt(length, salt=length) for length in LENGTHS]
    plain = [generate(model, prompt) for prompt in prompts]
    constrained = [
        generate(model, prompts[i], _matcher(engine, grammar)) for i, grammar in CONSTRAINED
    ]
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0)
    free = [
        (
            f"prompt of {len(prompt)}",
            Request((prompt,), params, request_id=str(i)),
            plain[i],
        )
        for i, prompt in enumerate(prompts)
    ]
    held = [
        (
            f"constrained prompt of {LENGTHS[i]}",
            Request((prompts[i],), params, grammar, request_id=f"g{i}"),
            t,
        )
        for (i, grammar), t in zip(CONSTRAINED, constrained, strict=True)
    ]
    for trials in (free, [free[i] for i in (3, 0, 5, 2, 4, 1)], held):
        completions = engine.generate([request for _, request, _ in trials])
        for (name, _, expected), completion in zip(trials, completions, strict=True):
            if completion.error is not None:
                verdict.failures.append(f"{name}: {completion.error!r}")
                continue
            token_ids = completion.choices[0].token_ids
            fault = compare(expected, token_ids)
            if fault is None and trials is not held and len(token_ids) < len(expected[0]):
                fault = f"ends after {len(token_ids)} tokens"
            if fault is not None:
                verdict.failures.append(f"{name}: {fault}")
    engine.stop()
    return verdict


def find_forward_on_gpu(folder: Path, case: Case) -> str:
    """Return the forward pass that the GPU's attention gets, tried on the CPU. Loading a model
    compares it with ``generate``."""
    path = save(folder, case)
    backend = CudaBackend(torch.device("cpu"))
    try:
        model = read_model(path, torch.float32, backend.attention)
        return wrap_model(model, read_tokenizer(path), backend, CONFIG).forward
    except UnsupportedModel:
        return "refused"


NO_REFERENCE = "no reference"
"""The forward of a verdict on a model whose whole prompt transformers cannot score at once, or not
in bfloat16, as it generates."""


def try_in_bfloat16(folder: Path, case: Case) -> Verdict:
    """Compare the log probabilities of a prompt with those in float32: they may be as far off as
    transformers' own in bfloat16. Heads are of a size that the C forward takes, if the family lets
    them."""
    prompt = greedy.prompt(LENGTHS[-1])
    try:
        path = save_for_c(folder, case)
        exact = _scores(path, prompt, torch.float32)
        theirs = _scores(path, prompt, torch.bfloat16)
    except RuntimeError as error:
        return Verdict(NO_REFERENCE, [str(error)])
    try:
        engine = build_engine(path, CONFIG_IN_BFLOAT16)
    except UnsupportedModel as error:
        return Verdict("refused", [str(error)])
    request = Request((prompt,),
        SamplingParams(max_tokens=1, temperature=0),
        logprobs=(LogprobParams(0, logprob_start_len=0),),
     request_id="r")  # fmt: skip
    [completion] = engine.generate([request])
    engine.stop()
    verdict = Verdict(engine.forward)
    if completion.error is not None:
        verdict.failures.append(repr(completion.error))
        return verdict
    scored = completion.choices[0].prompt_logprobs
    assert scored is not None
    ours = torch.tensor(scored.chosen[1:])
    error, noise = ((scores - exact).abs().mean().item() for scores in (ours, theirs))
    if not error < NOISES * noise + MARGIN:
        verdict.failures.append(f"log probabilities are off by {error:.3g}, not {noise:.3g}")
    return verdict


@torch.inference_mode()
def _scores(path: Path, prompt: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The log probabilities of a prompt's tokens after the first."""
    model = _read(path, dtype)
    ids = torch.tensor([list(prompt)])
    generated_from = model.prepare_inputs_for_generation(ids, is_first_iteration=True)["input_ids"]
    if generated_from is not None and generated_from.shape != ids.shape:
        raise RuntimeError("the model generates by a token that it appends")
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    positions = {"position_ids": torch.arange(len(prompt))[None]} if takes_positions else {}
    logits = model(input_ids=ids, use_cache=False, **positions).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def save_for_c(folder: Path, case: Case) -> Path:
    """Write a model of sizes that the C forward takes, if the configuration lets itself be."""
    candidates = [IN_C, {**IN_C, "head_dim": IN_C["hidden_size"] // 4}]
    known = CONFIG_MAPPING[case.family]().get_text_config().to_dict()
    if INPUTS_IN_C.keys() <= known.keys():
        candidates.insert(0, {**IN_C, **INPUTS_IN_C})
    if "kv_lora_rank" in known:
        candidates.insert(0, {**IN_C, **LATENTS_IN_C})
    for i, sizes in enumerate(candidates):
        path = folder / str(i)
        with suppress(Exception):  # what a configuration refuses is its own affair
            save(path, case, **sizes)
            _scores(path, greedy.prompt(3), torch.float32)
            return path
    return save(folder / "any", case)


def _matcher(engine: Engine, grammar: str) -> LLMatcher:
    compiled = engine.structured_output.compile_now(grammar, 1)
    assert isinstance(compiled, list)
    matcher: LLMatcher = compiled[0].matcher
    return matcher


class _Allowed(LogitsProcessor):
    """Leaves what a grammar allows."""

    def __init__(self, matcher: LLMatcher, prompt_len: int) -> None:
        self._matcher, self._prompt_len = matcher, prompt_len

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        if input_ids.shape[1] > self._prompt_len:
            self._matcher.consume_token(int(input_ids[0, -1]))
        if self._matcher.is_stopped():
            return scores
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: scores.shape[1]]
        return scores.masked_fill(torch.from_numpy(allowed == 0), -torch.inf)


@torch.inference_mode()
def generate(
    model: Any, prompt: Sequence[int], matcher: LLMatcher | None = None
) -> tuple[list[int], list[Tensor]]:
    """The greedy continuation of one prompt alone, and the logits of each of its tokens. It ends
    with the grammar, if there is one."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
        output_scores=True, return_dict_in_generate=True,
        logits_processor=[] if matcher is None else [_Allowed(matcher, len(prompt))],
    )  # fmt: skip
    token_ids = output.sequences[0, len(prompt) :].tolist()
    return token_ids, [row[0] for row in output.scores]


def compare(expected: tuple[list[int], list[Tensor]], generated: list[int]) -> str | None:
    """The first difference that is no tie, in words. A text may end before ``generate`` does,
    which does not know that a grammar is complete."""
    token_ids, logits = expected
    for i, (ours, theirs) in enumerate(zip(generated, token_ids, strict=False)):
        if ours != theirs:
            margin = (logits[i][theirs] - logits[i][ours]).item()
            return None if margin < TIE else f"token {i} is {ours}, not {theirs}, by {margin:.3g}"
    return (
        None
        if 0 < len(generated) <= len(token_ids)
        else f"{len(generated)} tokens of {len(token_ids)}"
    )
