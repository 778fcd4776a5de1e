"""What a rank's own check finds decides how all ranks compute: the GPU's forward, on the CPU."""

from typing import Any

import pytest

from completions.contract.sampling import SamplingParams
from tests.workers.engine.backends.cuda.without_gpu.plain_kernels import PlainKernels
from tests.workers.engine.backends.parallel import fused_follower
from tests.workers.engine.backends.parallel.conftest import Make
from tests.workers.engine.backends.parallel.fused_follower import FusingBackend, spoil
from workers.engine.backends.cuda import fusion
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.kv_cache import Way
from workers.engine.backends.parallel import followers
from workers.engine.checkpoints import loader
from workers.engine.core.request import Request
from workers.engine.engine import Engine

pytestmark = pytest.mark.long

ASK = Request(
    request_id="asked",
    prompts=((1, 5, 9, 30) * 9,),
    sampling=SamplingParams(max_tokens=20, temperature=0, ignore_eos=True),
)


@pytest.fixture
def expected(make_ranks: Make) -> list[int]:
    return tokens_of(make_ranks("llama", 1, speculation=False))


def tokens_of(engine: Engine) -> list[int]:
    (completion,) = engine.generate([ASK])
    return completion.choices[0].token_ids


def follow_with(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(
        followers, "_FOLLOWER", "tests.workers.engine.backends.parallel.fused_follower"
    )
    monkeypatch.setenv(fused_follower.FAULT, fault)


@pytest.mark.parametrize("fault", ["", fused_follower.KERNEL])
def test_operations_are_fused_on_all_ranks_or_on_none(
    make_ranks: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    expected: list[int],
    fault: str,
) -> None:
    kernels = PlainKernels()
    monkeypatch.setattr(loader, "choose_backend", FusingBackend)
    monkeypatch.setattr(fusion, "kernels", lambda: kernels)
    follow_with(monkeypatch, fault)
    engine = make_ranks("llama", 2)
    kernels.calls.clear()
    assert tokens_of(engine) == expected
    assert bool(kernels.calls) is not bool(fault)
    said = (
        "operations are not fused, since LlamaForCausalLM does not run over pages: rank 1: Runtime"
    )
    assert (said in caplog.text) is bool(fault)


@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_rank_with_more_kernels_than_another_gives_them_up_alone(
    make_ranks: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    expected: list[int],
    spoiled: int,
) -> None:
    if spoiled == 0:
        spoil(monkeypatch.setattr)
        monkeypatch.setattr(
            followers, "_FOLLOWER", "tests.workers.engine.backends.parallel.gpu_follower"
        )
    else:
        monkeypatch.setattr(loader, "choose_backend", CudaBackend)
        follow_with(monkeypatch, fused_follower.ATTENTION)
    engine = make_ranks("llama", 2)
    runner: Any = engine.runner
    assert {layer.way for layer in runner.cache.layers.values()} == {Way.GATHERED}
    assert "attention falls back to a simpler kernel" in caplog.text
    assert tokens_of(engine) == expected
