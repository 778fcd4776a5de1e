"""deploy/kubernetes gives each pod no more than it needs, and Kustomize builds every overlay."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from tests.acceptance.service import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = [path.name for path in sorted((FOLDER / "overlays").iterdir())]
OURS = ("quire-web", "quire-worker")

Resource = dict[str, Any]


def written() -> Iterator[tuple[Path, Resource]]:
    """Each whole resource in a file, before Kustomize."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        for resource in yaml.safe_load_all(path.read_text()):
            if "metadata" in resource:
                yield path, resource


def pods(resources: list[Resource]) -> dict[str, Resource]:
    """Pod templates by the name of what makes them."""
    return {
        f"{each['kind']} {each['metadata']['name']}": each["spec"]["template"]
        for each in resources
        if "template" in each.get("spec", {})
    }


@cache
def kustomize() -> list[str] | None:
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else None


def built(name: str, tmp_path: Path) -> list[Resource]:
    """The resources of an overlay, with the secrets of its example."""
    command = kustomize()
    if command is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes") / "overlays" / name
    shutil.copy(folder / "quire.env.example", folder / "quire.env")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


TEMPLATES = pods([resource for _, resource in written()])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_pod_can_do_little(name: str) -> None:
    spec = TEMPLATES[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_pods_run_as_the_user_of_the_image() -> None:
    (uid,) = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    for template in TEMPLATES.values():
        spec = template["spec"]
        if spec["containers"][0]["image"] in OURS:
            assert spec["securityContext"]["runAsUser"] == int(uid)


def test_commands_and_probes_exist() -> None:
    commands = {p.stem for p in (ROOT / "project/management/commands").glob("*.py")}
    commands |= {p.stem for p in (ROOT / "completions/management/commands").glob("*.py")}
    named = set()
    for path in FOLDER.rglob("*.yaml"):
        named |= set(re.findall(r"manage\.py,? (\w+)", path.read_text()))
    assert {"migrate", "engine_worker", "cpu_worker", "prepare_model", "worker_alive"} <= named
    assert named - {"migrate"} <= commands


def test_a_stopping_pod_outlives_the_grace_of_its_process() -> None:
    """20 s of uvicorn after 5 s in which the Service forgets the pod; 25 s of an engine worker."""
    graces = {
        name: t["spec"]["terminationGracePeriodSeconds"]
        for name, t in TEMPLATES.items()
        if name.startswith(("Deployment", "StatefulSet"))
    }
    assert graces["Deployment web"] > 25
    assert graces["Deployment worker"] > 25


def test_every_pod_is_covered_by_a_network_policy() -> None:
    policies = [r for _, r in written() if r["kind"] == "NetworkPolicy"]
    closed = [p for p in policies if p["spec"]["podSelector"] == {}]
    assert [p["spec"]["policyTypes"] for p in closed] == [["Ingress", "Egress"]]
    open_to_all = [
        p["metadata"]["name"]
        for p in policies
        for rule in p["spec"].get("ingress", [])
        if "from" not in rule
    ]
    assert open_to_all == ["web"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_valid(name: str, tmp_path: Path) -> None:
    resources = built(name, tmp_path)
    for resource in resources:
        if resource["kind"] != "ScaledObject":  # no part of Kubernetes itself
            validate(resource, "1.34", strict=True)
    for scaled in (r for r in resources if r["kind"] == "ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]["name"]
        (workers,) = [
            r for r in resources if r["metadata"]["name"] == target and r["kind"] == "Deployment"
        ]
        assert "replicas" not in workers["spec"]
        model = workers["spec"]["template"]["metadata"]["labels"]["quire/model"]
        query = scaled["spec"]["triggers"][0]["metadata"]["query"]
        assert set(re.findall(r'model_name="([^"]*)"', query)) == {model}


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_a_pod_reads_is_defined(name: str, tmp_path: Path) -> None:
    """ConfigMaps, Secrets and claims, after Kustomize has renamed them; and models.toml."""
    resources = built(name, tmp_path)
    names = {(r["kind"], r["metadata"]["name"]) for r in resources}
    settings = next(
        r["data"]
        for r in resources
        if r["kind"] == "ConfigMap" and r["metadata"]["name"].startswith("settings-")
    )
    for template in pods(resources).values():
        spec = template["spec"]
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in names
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            for source in container.get("envFrom", []):
                kind = "ConfigMap" if "configMapRef" in source else "Secret"
                (reference,) = source.values()
                assert (kind, reference["name"]) in names
            reads_table = container["image"].endswith(OURS) or any(
                f"{image}:" in container["image"] for image in OURS
            )
            if "QUIRE_MODELS" in settings and reads_table:
                mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
                assert str(Path(settings["QUIRE_MODELS"]).parent) in mounts, container["name"]


def test_the_query_counts_metrics_that_exist() -> None:
    text = (FOLDER / "components/keda/scaled-object.yaml").read_text()
    files = ("workers/metrics.py", "completions/endpoints/metrics.py")
    sources = "".join((ROOT / path).read_text() for path in files)
    metrics = set(re.findall(r"quire_(\w+)\{", text))
    assert metrics == {"num_requests_running", "num_requests_waiting", "queue_messages"}
    assert all(f'"{name}"' in sources or f'"quire_{name}"' in sources for name in metrics)
