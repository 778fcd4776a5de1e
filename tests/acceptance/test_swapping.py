"""One worker serves two models, of which it loads one at a time: nothing is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL, save_small_model
from tests.faults.invariants import until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

GRACE = 1


class OneWorker(Installation):
    def more_models(self) -> str:
        return save_small_model(self.home / SMALL)


@pytest.fixture(scope="module")
def swapping(tmp_path_factory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("swapping")
    with OneWorker(home, QUIRE_SWAP_MODELS="true", QUIRE_SHUTDOWN_GRACE=str(GRACE)) as installation:
        yield installation


def get_models(service: Installation) -> dict[str, tuple[str, bool]]:
    with service.http() as http:
        models = http.get("/v1/models").raise_for_status().json()["data"]
    return {
        each["id"]: (each["status"], each["cold_start"]) for each in models if not each["parent"]
    }


def test_a_model_is_loaded_when_it_is_asked_for(swapping):
    loaded, cold = ("loaded", False), ("unloaded", True)
    until(lambda: sorted(get_models(swapping).values()) == [loaded, cold], "one is loaded", 60)
    with swapping.client() as client:
        for model, other in ((SMALL, MODEL), (MODEL, SMALL)):
            answer = client.completions.create(model=model, prompt=[7, 8], max_tokens=3)
            assert answer.usage.completion_tokens == 3
            assert get_models(swapping) == {model: loaded, other: cold}


def test_two_models_under_load_end_all_their_jobs(swapping):
    """Long answers of one model run while calls of both arrive."""

    def call(number: int) -> str:
        model = (MODEL, SMALL)[number % 2]
        with swapping.client() as client:
            answer = client.completions.create(
                model=model, prompt=[7, number], max_tokens=24, temperature=0, timeout=280,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
        assert answer.usage.completion_tokens == 24
        return answer.choices[0].text

    with swapping.client() as client, swapping.http() as http:
        long = [
            client.completions.create(
                model=MODEL, prompt=[9, n], max_tokens=200, temperature=0,
                extra_body={"ignore_eos": True, "background": True},
            ).id
            for n in range(2)
        ]  # fmt: skip
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(call, range(8)))
        assert [call(number) for number in (6, 7)] == texts[6:]
        for job_id in long:
            done = until(
                lambda job_id=job_id: (
                    (job := http.get(f"/v1/completions/{job_id}").json())["status"] == "completed"
                    and job
                ),
                "a long answer ends",
            )
            assert done["usage"]["completion_tokens"] == 200
    log = (swapping.home / "log" / "worker.log").read_text()
    assert log.count('"loaded ') >= 2
