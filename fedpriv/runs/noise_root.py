"""The root key of a simulation's private draws: cohorts, users' training, and noise.

Were they made of the seed alone, two runs at the default seed would add the same noise, and the
difference of their models would have none on it: of two mechanisms, or of two training sets that
differ in one user. With the same cohorts the cost of both together would be more than what adding
up their events says: amplification is earned once a draw. So a digest is folded into the key. It
is in the ledger's first line, and a run without one is refused. Initial params are of the seed
alone.

The digest is of

* the plan (but not what follows from its mechanism's parts), and every option and kind of the parts
  that are chosen, defaults included: were they left out, a default that changes would give two
  mechanisms one noise. Automatic ones enter by the values that were chosen;
* the digest of all users' data. Where it is not known (the users are on nodes, or the task has no
  digest of them) 16 bytes of fresh entropy stand in its place: such a run is resumed from its
  ledger, and is not drawn again by its seed;
* the digests of a start from a file and of what the model keeps frozen;
* the experiment's name where it runs user-defined code (a custom task, a derived class, a part that
  is not fedpriv's, `statistics`). Code is not read: two experiments that differ in
  functions or classes alone, such as a loss, need two names or two seeds. Runs that draw alike are
  not composed (`fedpriv.studies.runner.composed`).

It is not of who works, what is measured or where it is written, nor of a name or description by
which nothing is trained: the same experiment adds the same noise on every backend, and two that are
the same mechanism on the same data release the same model. On another device (`--device`) its sums
end with other bits under the same noise, so that the difference of two such runs at one seed has no
noise on it: publish one of them, or give the other a seed of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.experiments.experiment import Experiment
from fedpriv.hashes import document_sha256
from fedpriv.privacy.plan import AnyPlan, read_plan
from fedpriv.rng import Key
from fedpriv.tasks.task import PART
from fedpriv.tree import Params

NOISE = "noise_sha256"
"""Name of the digest among the further facts of a ledger's first line."""
NOT_TRAINED = frozenset({"eval_every", "start.file", "start.brought_weights"})
"""Options that change nothing that is trained; a start file's digest is in, wherever it lies."""
_VERSION = 6


def noise_digest(experiment: Experiment, document: Mapping[str, Any]) -> str:
    """Return the digest that distinguishes an experiment's draws, 64 hex digits.

    Args:
        experiment: Its automatic options chosen.
        document: Of its experiment.json. Without a digest of all users' data another one is
            returned each time.
    """
    corpus, start = document["corpus"], document["start"]
    return _digest(
        plan=_without_record(document["plan"]),
        **_trained(experiment),
        data=_data(corpus.get("data_sha256")),
        frozen={**(corpus.get("frozen") or {}), **(corpus.get("published") or {})} or None,
        start=start["sha256"] if start["kind"] == "file" else None,
    )


def training_digest(
    plan: AnyPlan,
    roster: Sequence[str],
    start: Params,
    described: Any = None,
    data: Mapping[str, str] | None = None,
) -> str:
    """Return the digest that distinguishes the draws of a training that no experiment describes.

    Args:
        plan: The plan.
        roster: The frozen ids.
        start: Params before the first round.
        described: JSON value of what else is known of it.
        data: Digests of the users' data by part; None where they are not known, and another digest
            is returned each time.
    """
    return _digest(
        plan=_without_record(plan.to_json()),
        data=_data(data),
        roster=list(roster),
        shapes={name: list(array.shape) for name, array in start.items()},
        described=described,
    )


def noise_root(root: Key, facts: Mapping[str, Any]) -> Key:
    """Return the root key of a run's private draws.

    Args:
        root: The run's root key. A secure one is fresh entropy, and is returned as it is.
        facts: Of the ledger's first line.

    Raises:
        ValueError: If the run is a simulation whose facts hold no digest.
    """
    if root.mode == "secure":
        return root
    if NOISE not in facts:
        raise ValueError(
            "the ledger's first line has no digest of what is trained, without which the noise "
            "would be of the seed alone; start a new run"
        )
    return root.fold("experiment").fold(str(facts[NOISE]))


def unkept_noise_root(root: Key, components: Any, start: Params) -> Key:
    """Return the root key of the private draws of a run in memory.

    Args:
        root: The root key.
        components: Of the run.
        start: Params before the first round, or of a later one.
    """
    if root.mode == "secure":
        return root
    task, experiment = components.task, getattr(components, "experiment", None)
    described = None if experiment is None else _trained(experiment)
    known = getattr(task, "data_sha256", None)
    digest = training_digest(
        components.plan, task.roster, start, described, None if known is None else known()
    )
    return noise_root(root, {NOISE: digest})


def _data(digests: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return digests of all users' data, or entropy where they are not known."""
    if digests and PART not in digests:
        return digests
    return {**(digests or {}), "entropy": secrets.token_hex(16)}


def _without_record(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without what follows from its mechanism: words may change, and draws not.

    Of a user-defined class, whose code may change, what follows stays in, its event first of all.
    """
    parts = plan.get("mechanism")
    if parts is None or (found := read_plan(plan).mechanism) is None or found.user_defined:
        return dict(plan)
    return {**plan, "mechanism": {name: parts[name] for name in parts if name != "recorded"}}


def _trained(experiment: Experiment) -> dict[str, Any]:
    """Return the options and kinds of the chosen parts, and the name that replaces code."""
    task, options = type(experiment.task), experiment.options()
    custom = not task.__module__.startswith("fedpriv.") or experiment.user_defined()
    return {
        "options": {name: options[name] for name in options if name not in NOT_TRAINED},
        "task": task.__qualname__,
        "code": experiment.name if custom else None,
    }


def _digest(**described: Any) -> str:
    return document_sha256({"version": _VERSION, **described})
