"""The manifests in examples/kubernetes grant what the compose file grants, and fit the schema."""

import subprocess
import tarfile

import pytest
import yaml

from fedpriv.deploy.checks import check_keys
from tests.deployment.layout import CHECKOUT
from tests.deployment.layout import read as read_compose

FILES = sorted((CHECKOUT / "examples" / "kubernetes").glob("*.yaml"))


def read():
    """The compose file with the first of its nodes, as the manifests have it."""
    compose = read_compose()
    gone = {f"{kind}-{node}" for kind in ("supernode", "client") for node in (2, 3)}
    services = {name: one for name, one in compose["services"].items() if name not in gone}
    return {**compose, "services": services}


def documents():
    return [one for file in FILES for one in yaml.safe_load_all(file.read_text("utf-8"))]


def deployments():
    found = [one for one in documents() if one["kind"] == "Deployment"]
    return {one["metadata"]["name"]: one["spec"]["template"] for one in found}


@pytest.mark.slow
def test_there_is_a_pod_for_each_container_with_its_user_memory_and_no_rights():
    pods, services = deployments(), read()["services"]
    assert set(pods) == set(services)
    for name, pod in pods.items():
        spec, service = pod["spec"], services[name]
        whole = spec["securityContext"]
        assert whole["runAsNonRoot"]
        assert f"{whole['runAsUser']}:{whole['runAsGroup']}" == service["user"]
        assert spec["automountServiceAccountToken"] is False
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["image"] == service["image"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
        (container,) = spec["containers"]
        assert container["resources"]["limits"]["memory"][:-1] == service["mem_limit"].upper()
        assert container.get("args", service.get("command")) == service.get("command")
        assert ("readinessProbe" in container) == ("healthcheck" in service)


@pytest.mark.slow
def test_what_a_pod_mounts_is_what_the_container_mounts_and_nothing_of_another_node():
    services = read()["services"]
    for name, pod in deployments().items():
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        given = {label for label, one in volumes.items() if "emptyDir" not in one}
        expected = {
            volume.split(":")[0].removeprefix("./deploy/").replace("/", "-").removesuffix(".json")
            for volume in services[name].get("volumes", [])
        }
        assert given == {
            label for label in expected if not label.startswith(("data-", "node-users"))
        }
        for label in given:
            is_secret = label.startswith(("keys-", "operator"))
            assert ("secret" if is_secret else "persistentVolumeClaim") in volumes[label]
        (container,) = pod["spec"]["containers"]
        assert not {one["name"] for one in container["volumeMounts"]} & {
            label for label, one in volumes.items() if "secret" in one
        }, "keys are copied: a secret's files are not the process's alone"


def _reaches(policies, pod, other):
    """Whether the policies let a pod open a connection to another one."""

    def selected(policy, labels):
        wanted = policy["spec"]["podSelector"].get("matchLabels", {})
        return wanted.items() <= labels.items()

    def allows(rules, kind, labels):
        for rule in rules:
            peers = rule.get(kind)
            if peers is None:
                return True
            for peer in peers:
                wanted = peer.get("podSelector", {}).get("matchLabels")
                if wanted is not None and wanted.items() <= labels.items():
                    return True
        return False

    def passes(direction, kind, labels, peer):
        held = [
            policy["spec"] for policy in policies
            if selected(policy, labels) and direction in policy["spec"]["policyTypes"]
        ]  # fmt: skip
        assert held, "a pod that no policy selects is open to all"
        return any(allows(spec.get(direction.lower(), []), kind, peer) for spec in held)

    return passes("Egress", "to", pod, other) and passes("Ingress", "from", other, pod)


@pytest.mark.slow
def test_pods_reach_those_they_share_a_network_with_and_everybody_the_gate_s_port():
    policies = [one for one in documents() if one["kind"] == "NetworkPolicy"]
    services = read()["services"]
    pods = {name: pod["metadata"]["labels"] for name, pod in deployments().items()}
    outsider = {"app": "somebody else's"}
    for name, labels in pods.items():
        for other, others in pods.items():
            shared = set(services[name]["networks"]) & set(services[other]["networks"])
            outward = "nodes" in services[name]["networks"]
            reached = bool(shared) or (other == "gate" and outward)
            assert _reaches(policies, labels, others) == reached, (name, other)
        assert not _reaches(policies, labels, outsider) or "nodes" in services[name]["networks"]
    ports = [p["spec"] for p in policies if p["metadata"]["name"] == "gate"]
    assert ports[0]["ingress"] == [{"ports": [{"port": 8443}]}]


@pytest.mark.slow
def test_keys_that_are_copied_are_the_processs_alone(tmp_path):
    """From an archive, as the guide has it, where a pod has it."""
    (copy,) = deployments()["superlink"]["spec"]["initContainers"]
    made = tmp_path / "made"
    (made / "nodes").mkdir(parents=True)
    for name in ("superlink.key", "superexec.secret", "nodes/node-1.pub"):
        (made / name).write_text("secret", "ascii")
        (made / name).chmod(0o644)
    for folder in ("given", "keys"):
        (tmp_path / folder).mkdir()
    with tarfile.open(tmp_path / "given" / "keys.tar", "w") as archive:
        archive.add(made, ".")
    command = copy["command"][-1].replace("/given/", f"{tmp_path}/given/")
    (tmp_path / "given" / "keys.tar").chmod(0o440)
    subprocess.run(["sh", "-c", command.replace(" /keys", f" {tmp_path}/keys")], check=True)
    check_keys(tmp_path / "keys")
    assert (tmp_path / "keys" / "nodes" / "node-1.pub").read_text("ascii") == "secret"
