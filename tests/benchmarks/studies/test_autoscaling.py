"""Which metric an autoscaler of engine workers should follow."""

import re

import pytest
import yaml

from benchmarks.studies import autoscaling
from tests.acceptance.service import ROOT


@pytest.mark.represented_by("1")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_workers_follow_the_demand_without_flapping(seed: int) -> None:
    """Up and down for the burst, up and down for the batch: five turns with the last calls."""
    outcome = autoscaling.simulate(autoscaling.DEMAND, seed)
    assert outcome.turns <= 5
    assert outcome.late <= 10
    assert max(outcome.replicas) == autoscaling.MOST  # for the batch
    assert outcome.replicas[-1] == autoscaling.LEAST  # after the last call


def test_workers_that_follow_the_waiting_requests_flap() -> None:
    by_demand, by_waiting = map(autoscaling.simulate, (autoscaling.DEMAND, autoscaling.WAITING))
    assert by_waiting.turns > 3 * by_demand.turns
    assert by_waiting.late > by_demand.late
    assert by_waiting.worker_hours > by_demand.worker_hours


def test_every_call_begins_and_the_whole_batch_runs() -> None:
    outcome = autoscaling.simulate(autoscaling.DEMAND)
    assert outcome.demand[-1] == 0
    assert 0 < outcome.batch_seconds < 3600
    calls = autoscaling.STEADY * (autoscaling.DRAIN + 2 * len(autoscaling.BURST))
    assert len(outcome.waits) == pytest.approx(calls, rel=0.02)


def test_the_simulation_has_the_settings_of_the_manifest() -> None:
    path = ROOT / "deploy/kubernetes/components/keda/scaled-object.yaml"
    spec = yaml.safe_load(path.read_text())["spec"]
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert spec["pollingInterval"] == autoscaling.EVERY
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (
        autoscaling.LEAST,
        autoscaling.MOST,
    )
    assert down["stabilizationWindowSeconds"] == autoscaling.STABILISATION
    assert down["policies"] == [
        {"type": "Pods", "value": 1, "periodSeconds": autoscaling.DOWN_EVERY}
    ]
    assert int(spec["triggers"][0]["metadata"]["threshold"]) == autoscaling.DEMAND.threshold
    assert "running" in re.findall(r"num_requests_(\w+)", spec["triggers"][0]["metadata"]["query"])
