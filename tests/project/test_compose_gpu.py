"""Compose files for GPUs: each worker has a GPU of its own, and Triton can run what it compiles."""

import pytest
import yaml

from tests.acceptance.service import ROOT

ONE = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
SPLIT = yaml.safe_load((ROOT / "compose.split.yaml").read_text())["services"]
MORE = yaml.safe_load((ROOT / "compose.gpus.yaml").read_text())["services"]


def devices(service):
    return service["deploy"]["resources"]["reservations"]["devices"]


@pytest.mark.parametrize("service", [ONE["worker"], MORE["worker-1"], SPLIT["worker"]])
def test_triton_can_load_what_it_compiles(service):
    folders = dict(each.partition(":")[::2] for each in service["tmpfs"])
    cache = service["environment"]["TRITON_CACHE_DIR"]
    assert {"exec", "uid=10001"} <= set(folders[cache].split(","))


def test_each_worker_has_a_gpu_of_its_own():
    assert MORE["worker"]["extends"] == {"file": "compose.gpu.yaml", "service": "worker"}
    assert MORE["worker-1"]["extends"] == {"file": "compose.yaml", "service": "worker"}
    named = [devices(ONE["worker"]), devices(MORE["worker-1"])]
    assert [[each["device_ids"] for each in gpus] for gpus in named] == [[["0"]], [["1"]]]
    for service in (ONE["worker"], MORE["worker-1"]):
        assert service["environment"]["QUIRE_DEVICE"] == "cuda"
        assert service["shm_size"] == "1gb"


def test_a_split_model_has_several_gpus_and_room_to_exchange_data():
    (gpus,) = devices(SPLIT["worker"])
    assert gpus["device_ids"] == ["0", "1"]
    assert SPLIT["worker"]["shm_size"] == "8gb"
