"""`experiment.json` of a run: options, plan, corpus, versions; written once, sealed."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.checkpoints.tensor_files import frozen_digests, read_frozen_bytes
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import DIAGNOSTIC_FACTS
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.experiments.load import from_anywhere, load_experiment
from fedpriv.experiments.options import normalize
from fedpriv.experiments.start import Start
from fedpriv.measures import MAJORITY
from fedpriv.privacy.statement.sealed import ASKED, DOCUMENT, FORMAT, VERSION, read_sealed
from fedpriv.runs.backends import Place
from fedpriv.tasks.checks import public_of_rostered
from fedpriv.tasks.task import data_digests
from fedpriv.training.algorithm import is_exact

_DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")
_PACKAGES = ("flwr", "torch", "numpy", "scipy", "ray", "dp-accounting")


def library_versions() -> dict[str, str]:
    """Return the versions of what is installed: a server in a container has no Ray."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


_LONGEST_LABEL = 100


def check_label(label: str | None) -> str | None:
    """Return the label of a run, or None where it has none.

    Raises:
        ValueError: If it is empty, longer than a line, or holds what is not printed.
    """
    if label is None:
        return None
    if not label.strip() or len(label) > _LONGEST_LABEL or not label.isprintable():
        raise ValueError(
            f"label {label!r} is not one line of 1 to {_LONGEST_LABEL} printed characters; give a "
            "short name, such as 'wide cohorts'"
        )
    return label.strip()


def make_document(
    components: Components,
    files: Mapping[str, bytes],
    secret: bytes | None,
    begun: Start,
    *,
    reference: str | None = None,
    place: Place = None,
    backend: str = "serial",
    baseline: Mapping[str, float] | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """Return the content of a run's experiment.json.

    Args:
        components: Of the experiment.
        files: The task's files by name.
        secret: What keys the digests of a secure run's data; None in simulation.
        begun: The params before the first round, and where they came from.
        reference: The name under which the experiment is found again; None if it has none.
        place: Where the corpus was found.
        backend: The backend's name.
        baseline: Values to compare with, of models that cost nothing.
        label: What the run is called wherever it is shown; None for the experiment's name. It is
            neither in the plan nor in the root of the noise.
    """
    experiment, mode = experiment_of(components), "simulation" if secret is None else "secure"
    side, task = components.side_information, components.task
    corpus = task.describe().to_json()
    if mode == "secure":  # counted on rostered users: diagnostics
        corpus["majority_class_accuracy"] = None
        provenance = corpus["provenance"]
        corpus["provenance"] = {
            name: value
            for name, value in provenance.items()
            if name not in DIAGNOSTIC_FACTS and not (name == "source" and _is_digest(value))
        }
    else:
        learnt = begun.facts["kind"] == "public"
        corpus |= public_of_rostered(task, learnt_from=learnt)
    if frozen := read_frozen_bytes(files):
        corpus["frozen"] = frozen_digests(frozen)
    if (digests := data_digests(task, secret)) is not None:
        corpus["data_sha256"] = digests
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": experiment.name,
        **({} if label is None else {"label": label}),
        "description": experiment.description,
        "reference": reference,
        "experiment": experiment.options(),
        **({"user_defined": dict(own)} if (own := components.user_defined) else {}),
        **({ASKED: asked} if (asked := _asked_of_own(components)) else {}),
        "plan": components.plan.to_json(),
        "corpus": {**corpus, **_recorded(place)},
        "side_information": None
        if side is None
        else {"source": side.source, "description": side.description},
        "mode": mode,
        "hardened": mode == "secure" and is_exact(components.plan, components.algorithm),
        "backend": backend,
        # Inside a Flower bundle fedpriv is a folder on the path, not an installed package.
        "versions": {"fedpriv": __version__, **library_versions()},
        "measures": [measure.to_json() for measure in task.measures],
        "files": {name: sha256(files[name]).hexdigest() for name in sorted(files)},
        "baseline": {**{name: corpus.get(name) for name in MAJORITY}, **(baseline or {})},
        "settings": None if components.settings is None else components.settings.to_json(),
        "start": dict(begun.facts),
    }


def _recorded(place: Place) -> dict[str, str | None]:
    """Return a place as `recorded_place` reads it."""
    if isinstance(place, NodeData):
        return {"path": str(place.path), "data_key": str(place.key)}
    return {"path": place}


def _asked_of_own(components: Components) -> list[str]:
    """Return user-defined parts of mechanisms that requests bring, in words."""
    asked = components.algorithm.mechanisms()
    return sorted({part for mechanism in asked for part in mechanism.user_defined})


def _is_digest(value: Any) -> bool:
    """Return whether a source is given by checksums of files, which hold everybody's data.

    Who has a file with one record more, and one without, tells by them which was trained on; a
    secure run's digests of its data are keyed for the same reason.
    """
    given: Any = value
    values: Iterable[Any] = given.values() if isinstance(value, Mapping) else [value]
    return any(isinstance(one, str) and _DIGEST.search(one) is not None for one in values)


def read_document(path: Path) -> Mapping[str, Any]:
    """Return the experiment.json of a run, once its ledger's seal on it was checked.

    Raises:
        ValueError: If the folder holds no run of this version, or its files do not belong together.
    """
    if not (path / DOCUMENT).is_file():
        raise ValueError(f"{path} holds no run (no {DOCUMENT}); give the folder a run wrote")
    document = read_sealed(path).document
    assert document is not None
    return document


def check_experiment_name(
    document: Mapping[str, Any], path: Path, given: str | None = None
) -> str | None:
    """Return the name by which a run's experiment is found; None of one that has no name.

    Anybody can write a folder whose seal fits. So what it names is imported where it is one of the
    experiments that are installed here, and user-defined code, `module:function` or
    `file.py:function`, only where the person names that too.

    Args:
        document: Of the run.
        path: Its folder.
        given: The name that the person gave.

    Raises:
        ValueError: If the run names code that was not given, or another name was given.
    """
    name = document.get("reference")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{path} has {name!r}, which is no name of an experiment; restore it")
    if given is not None and name is None:
        raise ValueError(
            f"{path} was started with an experiment that has no name, and {given!r} is one; give "
            f"the experiment itself, fedpriv.resume({str(path)!r}, experiment=...), or start a run "
            "by the name"
        )
    if given is not None:
        if from_anywhere(given) != name:
            raise ValueError(f"{path} is a run of {name}, not of {given}")
        return name
    if name is not None and ":" in name:
        raise ValueError(
            f"{path} is a run of {name}: code, which no folder gets to run by itself; if you "
            f"trust it, name it too: `fedpriv run {name} --resume {path}`, or elsewhere "
            f"`--experiment {name}`, in Python experiment={name!r}"
        )
    return name


def resume_command(path: Path, name: str | None) -> str:
    """Return the command that goes on with a run.

    Args:
        path: Its folder.
        name: Of its experiment, which is given again where it is code; None for none.
    """
    code = f"{shlex.quote(name)} " if name is not None and ":" in name else ""
    return f"fedpriv run {code}--resume {path}"


def describe_unused(document: Mapping[str, Any], given: Experiment) -> str:
    """Return which options of an experiment a run that goes on does not use; "" for none."""
    planned, now = document["experiment"], given.options()
    others = {
        entry.path: f"{normalize(entry.path)}={now[entry.path]} (it is {planned.get(entry.path)})"
        for entry in given.entries()
        if now[entry.path] not in (entry.default, planned.get(entry.path))
    }
    said = ", ".join(others.values())
    return said and f"the run goes on as it was planned; not used: {said}"


def restore_experiment(
    document: Mapping[str, Any], path: Path, given: Experiment | str | None = None
) -> Experiment:
    """Return the experiment of a run, with the options that it was run with.

    Args:
        document: Of the run.
        path: Its folder.
        given: What the person names or gives; its options do not matter.

    Raises:
        ValueError: As `name_of_experiment`; or if it has no name and is not given, or another one
            is given.
    """
    if not isinstance(given, Experiment):
        name = check_experiment_name(document, path, given)
        if name is None:
            raise ValueError(
                f"{path} was started from Python, with an experiment that has no name to find it "
                "by; give it there as experiment=..., such as "
                f"fedpriv.resume({str(path)!r}, experiment=...)"
            )
        given = load_experiment(name)
    elif given.name != document["name"]:
        raise ValueError(f"{path} is a run of {document['name']}, not of {given.name}")
    return given.with_options(document["experiment"])


def experiment_of(components: Components) -> Experiment:
    """Return the experiment of which components were made, each option with its value."""
    assert components.experiment is not None
    return components.experiment


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, synced."""
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8") as out:
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
