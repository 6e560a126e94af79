"""Kubernetes manifests of the layout that the compose file describes.

Each container of the compose file is a Deployment of one pod, each of its networks a NetworkPolicy,
and what it mounts a Secret or a claim. The compose file stays the one description: users, rights,
memory and who reaches whom are read out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from fedpriv.deploy.compose import compose_file

_VARIABLE = re.compile(r"\$\$|\$\{(\w+):-([^}]*)\}")
_PORTS = {"superlink": 8000, "gate": 8443, "supernode": 9094}
_DNS = {
    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}
_SERVERS_PART = "parts-server"  # claim that has node-users.json too
# A secret's files are root's, and readable by the pod's group; private keys must be the process's
# alone, so they are copied to memory first. As an archive, because a secret has no folders. Its own
# folder `.` is left out: the volume is root's, so that tar may not change its time or mode.
_COPY_KEYS = (
    "umask 077 && tar --no-same-owner --no-same-permissions --strip-components=1 "
    "-xf /given/keys.tar -C /keys"
)


def read_compose(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a compose file with its variables filled in: given ones, else their defaults.

    As compose has it, an empty one is not given, and a value is no part of the file's YAML.
    """

    def value(found: re.Match[str]) -> str:
        return (environment.get(found[1]) or found[2]) if found[1] else "$"

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(each) for key, each in part.items()}
        if isinstance(part, list):
            return [filled(each) for each in part]
        return _VARIABLE.sub(value, part) if isinstance(part, str) else part

    return filled(yaml.safe_load(text))


def kubernetes_manifests(
    nodes: int, environment: Mapping[str, str], *, storage: str = "10Gi"
) -> dict[str, str]:
    """Return manifests by file name: "server.yaml", and "node-1.yaml" and so on.

    A node's file may be applied in another cluster than the server's; its network policies refuse
    whatever the layout does not name, so each file wants a namespace of its own, or the same.

    Args:
        nodes: As of `compose_file`.
        environment: Variables of the compose file (`FEDPRIV_USER`, `FEDPRIV_SUPERLINK`, ...);
            where the files of a deployment lie is not read, for there they are secrets and claims.
        storage: Size of each claim.

    Raises:
        ValueError: As `compose_file`.
    """
    ignored = ("FEDPRIV_DEPLOY", "FEDPRIV_ANCHOR", "FEDPRIV_PORT")
    given = {name: value for name, value in environment.items() if name not in ignored}
    compose = read_compose(compose_file(nodes), given)
    files: dict[str, list[str]] = {"server.yaml": ["superlink", "gate", "serverapp", "operator"]}
    for k in range(1, nodes + 1):
        files[f"node-{k}.yaml"] = [f"supernode-{k}", f"client-{k}"]
    return {
        file: yaml.dump_all(_documents(compose, names, storage), Dumper=_Plain, sort_keys=False)
        for file, names in files.items()
    }


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice, as people do, without YAML's anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _documents(
    compose: Mapping[str, Any], names: Sequence[str], storage: str
) -> Iterator[dict[str, Any]]:
    services = {name: compose["services"][name] for name in names}
    yield _policy("default-deny", {"podSelector": {}})
    networks = dict.fromkeys(net for service in services.values() for net in service["networks"])
    for network in networks:
        pods = {"podSelector": {"matchLabels": {_label(network): "yes"}}}
        internal = (compose["networks"][network] or {}).get("internal", False)
        yield _policy(
            f"network-{network}",
            {**pods, "ingress": [{"from": [pods]}],
             "egress": [{"to": [pods]}, _DNS] if internal else [{}]},
        )  # fmt: skip
    if "gate" in services:
        yield _policy(
            "gate",
            {"podSelector": {"matchLabels": {"app": "gate"}},
             "ingress": [{"ports": [{"port": _PORTS["gate"]}]}], "policyTypes": ["Ingress"]},
        )  # fmt: skip
    for claim in dict.fromkeys(c for service in services.values() for c in _claims(service)):
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": storage}},
            },
        }
    for name, service in services.items():
        if port := _PORTS.get(name.partition("-")[0]):
            yield {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {
                    "type": "LoadBalancer" if name == "gate" else "ClusterIP",
                    "selector": {"app": name},
                    "ports": [{"port": port, "targetPort": port}],
                },
            }
        yield _deployment(name, service)


def _policy(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"policyTypes": ["Ingress", "Egress"], **spec},
    }


def _label(network: str) -> str:
    return f"fedpriv/network-{network}"


def _deployment(name: str, service: Mapping[str, Any]) -> dict[str, Any]:
    user, _, group = str(service["user"]).partition(":")
    labels = {"app": name, **{_label(network): "yes" for network in service["networks"]}}
    rights = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes, mounts, inits = [], [], []
    for line in service.get("tmpfs", ()):
        path, _, options = line.partition(":")
        size = next(o for o in options.split(",") if o.startswith("size=")).removeprefix("size=")
        _in_memory(volumes, mounts, path, _bytes(size))
    for source, target, mode in _mounted(service):
        label = source.replace("/", "-")
        if _is_secret(source):
            volumes.append({"name": label, "secret": {"secretName": label}})
            _in_memory(volumes, mounts, target, "16Mi")
            inits.append({
                "name": "keys", "image": service["image"],
                "command": ["sh", "-c", _COPY_KEYS],
                "securityContext": rights,
                "volumeMounts": [
                    {"name": label, "mountPath": "/given", "readOnly": True},
                    {"name": mounts[-1]["name"], "mountPath": "/keys"},
                ],
            })  # fmt: skip
            continue
        mount = {"name": label, "mountPath": target, "readOnly": mode == "ro"}
        if source.endswith(".json"):  # a ConfigMap ends at 1 MiB, which 30,000 users are over
            mount |= {"name": _SERVERS_PART, "subPath": source}
        else:
            volumes.append({"name": label, "persistentVolumeClaim": {"claimName": label}})
        mounts.append(mount)
    environment = service.get("environment", {})
    container = {
        "name": name.partition("-")[0],
        "image": service["image"],
        # The operator waits for `kubectl exec deploy/operator -- fedpriv ...`.
        **({"command": ["sleep", "infinity"]} if name == "operator" else {}),
        **({"args": service["command"]} if "command" in service else {}),
        "env": [{"name": key, "value": str(value)} for key, value in environment.items()],
        "resources": {"limits": {"memory": _bytes(service["mem_limit"])}},
        "securityContext": rights,
        "volumeMounts": mounts,
    }
    if check := service.get("healthcheck"):
        container["readinessProbe"] = {
            "exec": {"command": check["test"][1:]},
            "periodSeconds": int(check["interval"].removesuffix("s")),
            "timeoutSeconds": int(check["timeout"].removesuffix("s")),
            "failureThreshold": check["retries"],
        }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # one holder of a ledger, and of a node's key
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": int(user),
                        "runAsGroup": int(group or user),
                        "fsGroup": int(group or user),
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    **({"initContainers": inits} if inits else {}),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _in_memory(
    volumes: list[dict[str, Any]], mounts: list[dict[str, Any]], path: str, size: str
) -> None:
    name = "memory" + path.replace("/", "-")
    volumes.append({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    mounts.append({"name": name, "mountPath": path})


def _mounted(service: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what a container mounts: where it lies under deploy/, its path, and "ro" or ""."""
    files = service.get("environment", {}).get("FEDPRIV_FILES", "")
    for volume in service.get("volumes", ()):
        source, target, *mode = volume.split(":")
        inside = source.removeprefix("./deploy/")
        if inside.startswith("data/" if not files else "parts/node-"):
            continue  # a client has a part of a corpus or files of its own
        yield inside, target, mode[0] if mode else ""


def _claims(service: Mapping[str, Any]) -> Iterator[str]:
    for source, _, _ in _mounted(service):
        if not _is_secret(source) and not source.endswith(".json"):
            yield source.replace("/", "-")


def _is_secret(source: str) -> bool:
    return source.startswith("keys/") or source == "operator"


def _bytes(size: str) -> str:
    return size[:-1] + {"m": "Mi", "g": "Gi"}[size[-1]]
