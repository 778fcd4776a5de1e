"""Puts an engine together: from a model's files, or around a model that is loaded already."""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from workers.engine.backends.base.gpu_memory import hold_turn
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.device import adapt, make_current
from workers.engine.backends.parallel.followers import Followers
from workers.engine.backends.parallel.leader import LeadingRunner
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig
from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.runner import Runner
from workers.engine.engine import Engine, EngineParts
from workers.engine.grammar.jump_rate import JumpRate
from workers.engine.grammar.structured_output import StructuredOutput
from workers.engine.intake import Intake
from workers.engine.launched_steps import Launcher
from workers.engine.live_requests import LiveRequests
from workers.engine.progress import Progress
from workers.engine.sampling.custom_processors import load_processors
from workers.engine.sampling.filters import draw_from_all
from workers.engine.sampling.sampler import Sampler
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.chunk_sizes import ChunkSizes
from workers.engine.scheduling.prefix_cache import BlockPrefixCache
from workers.engine.scheduling.saved_states import StatefulPrefixCache
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.speculation.speculation import Speculation, StepCosts

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


def build_engine(path: str | Path, config: EngineConfig, clock: Clock = time.monotonic) -> Engine:
    """Load a model from a folder or by its hub name, and build an engine around it.

    Raises UnsupportedModel, UnsupportedAdapter, and ValueError for a device or a logit processor
    that does not exist.
    """
    config = adapt(config)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.tensor_parallel_size == 1:
        return _load(path, config, clock, None)
    followers = Followers(path, config)
    try:
        return _load(path, config, clock, followers)
    except BaseException as error:
        lost = followers.find_loss(error)
        followers.stop()
        if lost is None:
            raise
        raise lost from error


def _load(
    path: str | Path, config: EngineConfig, clock: Clock, followers: Followers | None
) -> Engine:
    # On a thread that ends: OpenMP keeps a pool for each thread that computed. Once the pools
    # outnumber the cores, waiting threads sleep instead of spin, which halves a step's speed.
    device = torch.device(config.device)
    ranks = None if followers is None else followers.ranks
    make_current(device)
    with hold_turn(device):
        with ThreadPoolExecutor(1, "model-loader", make_current, (device,)) as loading:
            loaded = loading.submit(load_model, path, config, ranks).result()
        return compose_engine(loaded, config, clock, followers)


def compose_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    clock: Clock = time.monotonic,
    followers: Followers | None = None,
) -> Engine:
    """Build an engine around a loaded model. ``followers`` compute the other parts of a model that
    is split. Raises ValueError for a logit processor that does not exist."""
    runner = loaded.make_runner(loaded, config, draw_from_all)
    if followers is not None:
        runner = LeadingRunner(runner, followers)
        followers.meet()
    pool = BlockPool(runner.cache.num_blocks)
    prefix_cache = _make_prefix_cache(runner, pool, config)
    chunk_sizes = ChunkSizes(config.step_ms / 1000 if runner.cuts_prompts else math.inf)
    scheduler = Scheduler(
        pool,
        prefix_cache,
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        chunk_sizes,
    )
    speculation = _make_speculation(runner, scheduler, config)
    structured_output = StructuredOutput(
        loaded.vocabulary,
        loaded.eos_token_ids,
        config.grammar_threads,
        config.jump_forward,
        loaded.device,
    )
    jump_rate = JumpRate()
    live = LiveRequests(scheduler)
    return Engine(
        EngineParts(
            forward=loaded.forward,
            device=loaded.device,
            runner=runner,
            pool=pool,
            prefix_cache=prefix_cache,
            chunk_sizes=chunk_sizes,
            scheduler=scheduler,
            speculation=speculation,
            structured_output=structured_output,
            launcher=Launcher(
                scheduler,
                runner,
                loaded.recorder,
                structured_output,
                Sampler(),
                speculation,
                jump_rate,
            ),
            intake=_make_intake(
                loaded, runner, pool, config, config.adapter_store is not None and not followers
            ),
            live=live,
            progress=Progress(scheduler, live, speculation, jump_rate),
            adapters=None if followers is not None else loaded.adapters,
            followers=followers,
        ),
        config,
        clock,
    )


def _make_prefix_cache(runner: Runner, pool: BlockPool, config: EngineConfig) -> PrefixCache | None:
    if not (config.enable_prefix_caching and runner.shares_blocks):
        return None
    if (rows := runner.saved_states) is not None:
        return StatefulPrefixCache(pool, config.block_size, rows)
    return BlockPrefixCache(pool, config.block_size)


def _make_speculation(
    runner: Runner, scheduler: Scheduler, config: EngineConfig
) -> Speculation | None:
    """Speculation, if it is wanted and drafts cannot change what is sampled."""
    if not config.speculation:
        return None
    if (drafting := runner.drafting) is None:
        logger.info(
            "speculation is off: the bits of logits depend on the step's other tokens, or no memory"
            " is left for copies of states"
        )
        return None
    copies = drafting.copies
    costs = StepCosts(drafting.try_forward, None if copies is None else copies.try_copy)
    state_rows = None if copies is None else copies.rows
    return Speculation(
        scheduler, drafting.is_exact, costs, config.max_num_batched_tokens, state_rows
    )


def _make_intake(
    loaded: LoadedModel,
    runner: Runner,
    pool: BlockPool,
    config: EngineConfig,
    takes_registered: bool,
) -> Intake:
    return Intake(
        tasks=runner.tasks,
        vocabulary=loaded.vocabulary,
        vocab_size=loaded.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
        max_model_len=loaded.max_model_len,
        max_cached_tokens=min(pool.num_blocks * config.block_size, loaded.max_positions),
        adapters=loaded.adapters.names,
        takes_registered=takes_registered,
        sees_experts=loaded.recorder.sees_experts,
        processors=load_processors(config.logit_processors),
        penalizes_prompt=config.repetition_penalty_scope == "all",
    )
