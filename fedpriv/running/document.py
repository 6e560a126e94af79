"""What `experiment.json` says of a run: options, plan, corpus, versions; written once, sealed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.checkpoints.frozen_file import frozen_digests, read_frozen_bytes
from fedpriv.data.corpus.views import COUNTED
from fedpriv.experiments.components import Components
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.start import Start
from fedpriv.tasks.data_digest import KnowsDigests, data_digests
from fedpriv.tasks.trial import public_of_rostered
from fedpriv.training.algorithm import is_exact

FORMAT, VERSION = "fedpriv-run", 1
_DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")
_PACKAGES = ("flwr", "torch", "numpy", "scipy", "ray", "dp-accounting")


def _versions() -> dict[str, str]:
    """Return the versions of what is installed: a server in a container has no Ray."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def make_document(
    *,
    experiment: Experiment,
    reference: str | None,
    components: Components,
    corpus_path: str | None,
    engine: str,
    mode: str,
    files: Mapping[str, bytes],
    secret: bytes | None,
    begun: Start | None,
    baseline: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Return what a run's experiment.json holds.

    Args:
        experiment: What is run.
        reference: The name under which it is found again, if it has one.
        components: Made from it.
        corpus_path: Where the corpus was found.
        engine: The backend's name.
        mode: "simulation" or "secure".
        files: The task's files by name.
        secret: What keys the digests of a secure run's data; None in simulation.
        begun: The params before the first round; None where the task makes them.
        baseline: Further figures to compare with.
    """
    side, task = components.side_information, components.task
    described = task.describe().to_json()
    if mode == "secure":  # counted on rostered users: diagnostics
        described["majority_class_accuracy"] = None
        provenance = described["provenance"]
        described["provenance"] = {
            name: value
            for name, value in provenance.items()
            if name not in COUNTED and not (name == "source" and _is_digest(value))
        }
    else:
        learnt = begun is not None and begun.facts["kind"] == "public"
        described |= public_of_rostered(task, learnt_from=learnt)
    if frozen := read_frozen_bytes(files):
        described["frozen"] = frozen_digests(frozen)
    if isinstance(components.task, KnowsDigests):
        described["data_sha256"] = data_digests(task, secret)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": experiment.name,
        "description": experiment.description,
        "reference": reference,
        "experiment": experiment.options(),
        "plan": components.plan.to_json(),
        "corpus": {**described, "path": corpus_path},
        "side_information": None
        if side is None
        else {"source": side.source, "description": side.description},
        "mode": mode,
        "hardened": mode == "secure" and is_exact(components.plan, components.algorithm),
        "engine": engine,
        # Inside a Flower bundle fedpriv is a folder on the path, not an installed package.
        "versions": {"fedpriv": __version__, **_versions()},
        "measures": [measure.to_json() for measure in task.measures],
        "files": sorted(files),
        "baseline": {
            "majority_class_accuracy": described.get("majority_class_accuracy"),
            **(baseline or {}),
        },
        "settings": None if components.settings is None else components.settings.to_json(),
        "start": {"kind": "fresh"} if begun is None else dict(begun.facts),
    }


def _is_digest(value: Any) -> bool:
    """Return whether a source is given by checksums of files, which hold everybody's data.

    Whoever has a file with one record more, and one without, tells by them which was trained on; a
    secure run's digests of its data are keyed for the same reason.
    """
    values = value.values() if isinstance(value, Mapping) else [value]
    return any(isinstance(one, str) and _DIGEST.search(one) is not None for one in values)


def read_document(path: Path) -> dict[str, Any]:
    """Return a run's experiment.json.

    Raises:
        ValueError: If the folder holds no run of this version.
    """
    file = path / "experiment.json"
    if not file.is_file():
        raise ValueError(f"{path} holds no run (no experiment.json); give the folder a run wrote")
    document = json.loads(file.read_text("utf-8"))
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ValueError(
            f"{file} has format {document.get('format')!r} version {document.get('version')!r}; "
            f"this fedpriv reads {FORMAT!r} version {VERSION}"
        )
    return document


def kept_every(document: Mapping[str, Any]) -> int:
    """Return which rounds are kept: all, but of single examples those that are evaluated."""
    central = document["plan"]["unit"] != "user"
    return int(document["experiment"]["eval-every"]) if central else 1


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, synced."""
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8") as out:
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
