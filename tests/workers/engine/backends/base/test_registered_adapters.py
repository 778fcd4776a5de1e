"""Adapters that come, are replaced and go while the engine runs."""

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from completions.contract.adapters import (
    RETIRED_FILE,
    WEIGHTS_FILE,
    compute_digest,
    make_reference,
    read_digest,
)
from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.driving import tokens
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base import lora, registered_adapters
from workers.engine.backends.base.registered_adapters import RegisteredAdapters
from workers.engine.build import build_engine
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.config import EngineConfig
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Audience, Request
from workers.engine.engine import Engine
from workers.engine.exceptions import (
    EngineError,
    NoRoomForAdapter,
    UnsupportedAdapter,
    UnsupportedModel,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = tuple(range(40, 75))
FAMILIES: Mapping[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "llama in C": (LLAMA, "c", {"block_size": 16, "dtype": "bfloat16"}),
    "llama": (LLAMA, "torch", {"block_size": 4}),
    "qwen3 in int8": ({**LLAMA, "model_type": "qwen3"}, "c", {"block_size": 16, "dtype": "int8"}),
    "lfm2": (
        {**LLAMA, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        "torch",
        {"block_size": 4},
    ),
    "llama as in generate": (LLAMA, "general", {"block_size": 4}),
}
"""By what runs them: options of the model, the engine's forward, settings."""


@pytest.fixture(
    scope="module",
    params=stand_for_all(["llama in C", "lfm2", "llama as in generate"], sorted(FAMILIES)),
)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def base(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base"), FAMILIES[family][0])


@pytest.fixture(scope="module")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of an adapter."""
    root = tmp_path_factory.mktemp("adapters")
    return [
        save_adapter(root / str(seed), base, rank=2 + seed, seed=seed, lora_alpha=32)
        for seed in (1, 2)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def put(store: Path, folder: Path, name: str = "a") -> str:
    """Store a copy. Returns its reference."""
    digest = compute_digest(folder)
    shutil.copytree(folder, store / digest)
    return make_reference(name, digest)


def make(base: Path, family: str = "llama", **options: Any) -> Engine:
    _, forward, settings = FAMILIES[family]

    def refuse(*_: Any) -> None:
        raise UnsupportedModel("the test says so")

    common = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8, "kv_cache_bytes": 2**22}
    config = EngineConfig(**{**common, "max_num_batched_tokens": 24, **settings, **options})
    with pytest.MonkeyPatch.context() as patch:
        if forward == "general":
            patch.setattr(OwnAttention, "compare", refuse)
        engine = build_engine(base, config)
    assert engine.forward == forward
    return engine


def ask(adapter: str | None, number: int = 0, prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request((prompt,), PARAMS, adapters=(adapter,), request_id=f"{adapter}-{number}")


def run(engine: Engine, *requests: Request) -> list[list[int]]:
    completions = engine.generate(requests)
    assert [each.error for each in completions] == [None] * len(requests)
    return tokens(completions)


def count_hooks(engine: Engine) -> int:
    assert engine.registered_adapters is not None
    modules = engine.registered_adapters._adapters.model.modules()
    return sum(len(module._forward_hooks) for module in modules)


@pytest.mark.represented_by("llama in C")
def test_a_replaced_adapter_ends_what_it_began(
    base: Path, family: str, folders: list[Path], store: Path
) -> None:
    """Every version gives the tokens that it gives alone, loaded with the model, whatever else
    runs and came before; cached prefixes are never those of another version. Below float32, the
    other rows of a step change bits, and there only requests that run alone are compared."""
    static = make(base, family, adapters={"one": folders[0], "two": folders[1]})
    expected = [run(static, ask(adapter))[0] for adapter in (None, "one", "two")]
    assert len(set(map(tuple, expected))) == 3, "the adapters must make a difference"

    engine = make(base, family, adapter_store=store)
    hooks = count_hooks(engine)
    first, second = (put(store, folder) for folder in folders)
    by_adapter = dict(zip((None, first, second), expected, strict=True))
    alone = [run(engine, ask(adapter, 1))[0] for adapter in (None, first)]
    assert alone == expected[:2]
    engine.submit(ask(first, 2))
    produced: list[RequestOutput] = []
    while not produced:  # the first version runs when the second comes
        produced = engine.turn()
    engine.submit(ask(second, 2))
    engine.submit(ask(None, 2))
    together = drain(engine, produced)
    assert [len(each) for each in together.values()] == [PARAMS.max_tokens] * 3
    later = {name: run(engine, ask(name, 3))[0] for name in by_adapter}
    if "dtype" not in FAMILIES[family][2]:
        assert together == {f"{name}-2": by_adapter[name] for name in by_adapter}
        assert later == by_adapter
    assert list_loaded(engine) == {first, second}
    for reference in (first, second):
        retire(store, reference)
    get_registered(engine).free_retired()
    assert list_loaded(engine) == set()
    assert count_hooks(engine) == hooks
    engine.stop()


def get_registered(engine: Engine) -> RegisteredAdapters:
    assert engine.registered_adapters is not None
    return engine.registered_adapters


def list_loaded(engine: Engine) -> set[str]:
    return set(get_registered(engine).references)


def retire(store: Path, reference: str) -> None:
    (store / str(read_digest(reference)) / RETIRED_FILE).touch()


def drain(engine: Engine, produced: list[RequestOutput]) -> dict[str, list[int]]:
    """Run all requests to their ends. Returns their tokens, those of `produced` included."""
    gained: dict[str, list[int]] = {}
    while True:
        for output in produced:
            assert output.error is None
            for delta in output.deltas:
                gained.setdefault(output.request_id, []).extend(delta.token_ids)
        if not engine.live:
            return gained
        produced = engine.turn()


class TestOneEngine:
    """What does not depend on the forward."""

    @pytest.fixture(scope="class")
    def folders(self, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
        root = tmp_path_factory.mktemp("adapters")
        return [save_adapter(root / str(seed), tiny_llama, seed=seed) for seed in range(3)]

    @pytest.fixture
    def engine(self, tiny_llama: Path, store: Path) -> Iterator[Engine]:
        store.mkdir()
        engine = make(tiny_llama, adapter_store=store)
        yield engine
        engine.stop()

    def test_a_retired_adapter_stays_until_its_last_request_ends(
        self, engine: Engine, folders: list[Path], store: Path
    ) -> None:
        reference = put(store, folders[0])
        engine.submit(ask(reference))
        while not (produced := engine.turn()):
            pass
        retire(store, reference)
        get_registered(engine).free_retired()
        assert list_loaded(engine) == {reference}
        assert len(drain(engine, produced)[f"{reference}-0"]) == PARAMS.max_tokens
        get_registered(engine).free_retired()
        assert list_loaded(engine) == set()
        assert count_hooks(engine) == 0
        assert run(engine, ask(reference, 1)), "a job that was admitted before may come later"

    def test_another_worker_goes_on_with_the_version_of_the_first(
        self, engine: Engine, tiny_llama: Path, folders: list[Path], store: Path
    ) -> None:
        reference = put(store, folders[0])
        [whole] = run(engine, ask(reference))
        retire(store, reference)
        other = make(tiny_llama, adapter_store=store)
        left = structs.replace(ask(reference, 1), published={0: tuple(whole[:5])})
        assert run(other, left) == [whole[5:]]
        other.stop()

    def test_a_running_engine_frees_what_is_retired_by_itself(
        self, engine: Engine, folders: list[Path], store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registered_adapters, "WATCH_INTERVAL", 0.01)
        reference, freed = put(store, folders[0]), threading.Event()
        run(engine, ask(reference))
        free = get_registered(engine)._free
        monkeypatch.setattr(get_registered(engine), "_free", lambda each: (free(each), freed.set()))
        engine.start(lambda _outputs: None)
        shutil.rmtree(store / str(read_digest(reference)))
        assert freed.wait(30)
        assert list_loaded(engine) == set()

    def test_idle_adapters_make_room_and_running_ones_do_not(
        self, tiny_llama: Path, folders: list[Path], store: Path
    ) -> None:
        engine = make(tiny_llama, adapter_store=store, max_adapter_bytes=30_000)
        references = [put(store, folder) for folder in folders]
        for reference in references:
            run(engine, ask(reference))
        assert list_loaded(engine) == set(references[1:]), "the least recently used one is gone"
        live = [
            structs.replace(ask(reference, 1), audience=Audience.ANSWER) for reference in references
        ]
        completions = engine.generate(live)
        refused = [each.error for each in completions if each.error is not None]
        assert [type(error) for error in refused] == [NoRoomForAdapter]
        assert "try again later" in str(refused[0])
        engine.stop()

    def test_what_nobody_waits_for_waits_for_room(
        self, tiny_llama: Path, folders: list[Path], store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registered_adapters, "WATCH_INTERVAL", 0.01)
        references = [put(store, folder) for folder in folders]
        roomy = make(tiny_llama, adapter_store=store)
        expected = [run(roomy, ask(reference))[0] for reference in references]
        roomy.stop()
        engine = make(tiny_llama, adapter_store=store, max_adapter_bytes=30_000)
        asked = [ask(each, number) for number in range(3) for each in references]
        assert run(engine, *asked) == expected * 3
        assert get_registered(engine)._starved == []
        engine.stop()

    def test_what_waits_for_room_ends_in_time(
        self, tiny_llama: Path, folders: list[Path], store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make(tiny_llama, adapter_store=store, max_adapter_bytes=30_000)
        *held, other = (put(store, folder) for folder in folders)
        run(engine, *map(ask, held))
        registered = get_registered(engine)
        monkeypatch.setattr(registered, "_list_used", lambda: held)  # as if they ran on
        late = structs.replace(ask(other), deadline=time.monotonic() + 0.5)
        [completion] = engine.generate([late])
        assert isinstance(completion.error, EngineError)
        monkeypatch.setattr(registered, "_list_used", list)
        registered.look()
        assert list_loaded(engine) == set(held)
        engine.stop()

    def test_an_adapter_that_never_finds_room_is_refused_for_good(
        self, tiny_llama: Path, folders: list[Path], store: Path
    ) -> None:
        engine = make(tiny_llama, adapter_store=store, max_adapter_bytes=100)
        [completion] = engine.generate([ask(put(store, folders[0]))])
        assert isinstance(completion.error, UnsupportedAdapter)
        assert re.search(r"takes \d+ bytes of memory; a worker has 100", str(completion.error))
        engine.stop()

    @pytest.mark.parametrize(
        ("spoil", "complaint"),
        [
            (lambda folder: shutil.rmtree(folder), "cannot be read.*workers need the folder"),
            (lambda folder: (folder / WEIGHTS_FILE).write_bytes(b"x"), "have changed"),
        ],
    )
    def test_a_folder_that_is_not_the_stored_one_fails_its_requests_alone(
        self,
        engine: Engine,
        folders: list[Path],
        store: Path,
        spoil: Callable[[Path], object],
        complaint: str,
    ) -> None:
        good, bad = put(store, folders[0]), put(store, folders[1], "b")
        spoil(store / str(read_digest(bad)))
        completions = engine.generate([ask(bad), ask(good), ask(bad, 1), ask(None)])
        assert [type(each.error) for each in completions] == [
            UnsupportedAdapter,
            type(None),
            UnsupportedAdapter,
            type(None),
        ]
        assert re.search(f"adapter 'b': .*{complaint}", str(completions[0].error))

    def test_weights_for_another_model_name_the_layer(
        self, engine: Engine, folders: list[Path], store: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(folders[0], tmp_path / "other")
        tensors = load_file(folder / WEIGHTS_FILE)
        name = next(name for name in tensors if name.endswith("q_proj.lora_A.weight"))
        save_file({**tensors, name: torch.zeros(4, 65)}, folder / WEIGHTS_FILE)
        [completion] = engine.generate([ask(put(store, folder))])
        assert completion.error is not None
        assert completion.error.code == "unsupported_adapter"
        assert "65 to 64 features" in str(completion.error)
        assert count_hooks(engine) == 0

    @pytest.mark.parametrize(
        ("setting", "complaint"),
        [
            ({"alpha_pattern": {r"(\w|\w\w|.)+[!?]": 1}}, "takes too long"),
            ({"alpha_pattern": {"(": 1}}, "is invalid"),
            ({"alpha_pattern": ["x"]}, "is invalid"),
            ({"lora_alpha": None}, "is invalid"),
        ],
    )
    def test_hostile_settings_fail_in_bounded_time(
        self,
        engine: Engine,
        tiny_llama: Path,
        store: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        setting: dict[str, Any],
        complaint: str,
    ) -> None:
        monkeypatch.setattr(lora, "_PATTERN_SECONDS", 0.05)
        bad = put(store, save_adapter(tmp_path / "bad", tiny_llama, **setting))
        [completion] = engine.generate([ask(bad)])
        assert isinstance(completion.error, UnsupportedAdapter)
        assert complaint in str(completion.error)

    def test_a_request_may_be_aborted_while_its_adapter_is_read(
        self, engine: Engine, folders: list[Path], store: Path
    ) -> None:
        reference = put(store, folders[0])
        engine.submit(ask(reference))
        engine.receive(wait=False)
        engine.abort(ask(reference).request_id)
        assert len(run(engine, ask(reference, 1))[0]) == PARAMS.max_tokens

    def test_prompts_of_one_request_load_what_they_need(
        self, engine: Engine, folders: list[Path], store: Path
    ) -> None:
        adapters = (put(store, folders[0]), None, put(store, folders[1]))
        request = Request((PROMPT,) * 3, PARAMS, adapters=adapters, request_id="r")
        [completion] = engine.generate([request])
        apart = [run(engine, ask(each, 1))[0] for each in adapters]
        assert [choice.token_ids for choice in completion.choices] == apart

    def test_layers_that_do_not_see_every_token_are_refused_later_too(
        self, engine: Engine, folders: list[Path], store: Path
    ) -> None:
        adapters = get_registered(engine)._adapters
        assert adapters._seeing is not None
        layer = adapters.model.model.layers[1].mlp.down_proj
        adapters._seeing -= {layer}
        [completion] = engine.generate([ask(put(store, folders[0]))])
        assert "layers.1.mlp.down_proj does not see every token" in str(completion.error)

    def test_a_model_that_is_split_says_so(self, tiny_llama: Path, folders: list[Path]) -> None:
        engine = make(tiny_llama)  # without a store, as a model that is split
        with pytest.raises(UnsupportedAdapter, match="tensor_parallel_size = 1"):
            engine.submit(ask(make_reference("a", "0" * 64)))
