"""The root key of a simulation's noise: the seed, and a digest of what is trained.

Were noise made of the seed alone, two runs at the default seed would add the same, and the
difference of their models would have no noise on it: of two mechanisms, or of two training sets
that differ in one user. So a digest is folded into the key. It stands in the ledger's first line,
and a run without one is refused. Cohorts, users and initial params are of the seed alone, so that
methods are compared on the same users.

The digest is of

* the plan (but for `fedpriv.privacy.mechanism.DETAILS`, which options name), and every option and
  kind of the parts that are chosen, defaults included: were they left out, a default that changes
  would give two mechanisms one noise. Left out are options at the value at which they do nothing,
  which may not change (`Experiment.identity`). Automatic ones enter by the values that were chosen;
* the digest of the data, or what the task says of them where it knows none; the digests of a start
  from a file and of what the model keeps frozen;
* the experiment's name where it runs user-defined code (a custom task, a derived class with parts
  of its own, `refine`, `statistics`, `bounds`). Code cannot be hashed: the name and the data stand
  for it, so give two experiments with different code two names, or two seeds.

It is not of who works, what is measured or where it is written, nor of a name or description by
which nothing is trained: the same experiment adds the same noise on every backend, and two that are
the same mechanism on the same data release the same model. On another device (`--device`) its sums
end with other bits under the same noise, so that the difference of two such runs at one seed has no
noise on it: publish one of them, or give the other a seed of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.experiments.experiment import Experiment
from fedpriv.hashes import document_sha256
from fedpriv.privacy.mechanism import DETAILS
from fedpriv.privacy.plan import AnyPlan
from fedpriv.rng import Key
from fedpriv.tree import Params

NOISE = "noise_sha256"
"""Name of the digest among the further facts of a ledger's first line."""
NOT_TRAINED = frozenset({"eval_every", "start.file", "start.brought_weights"})
"""Options that change nothing that is trained; a start file's digest is in, wherever it lies."""
_VERSION = 1
_DESCRIBED = ("name", "roster_sha256", "num_users", "num_public_users")


def noise_digest(experiment: Experiment, document: Mapping[str, Any]) -> str:
    """Return the digest that distinguishes an experiment's noise, 64 hex digits.

    Args:
        experiment: Its automatic options chosen.
        document: Of its experiment.json.
    """
    corpus, start = document["corpus"], document["start"]
    return _digest(
        plan=document["plan"],
        **_trained(experiment),
        data=corpus.get("data_sha256") or {name: corpus.get(name) for name in _DESCRIBED},
        frozen={**(corpus.get("frozen") or {}), **(corpus.get("published") or {})} or None,
        start=start["sha256"] if start["kind"] == "file" else None,
    )


def training_digest(
    plan: AnyPlan, roster: Sequence[str], start: Params, described: Any = None
) -> str:
    """Return the digest that distinguishes the noise of a training that no experiment describes.

    Args:
        plan: The plan.
        roster: The frozen ids; the users' data are not known here.
        start: Params before the first round.
        described: JSON value of what else is known of it.
    """
    return _digest(
        plan=plan.to_json(),
        roster=list(roster),
        shapes={name: list(array.shape) for name, array in start.items()},
        described=described,
    )


def noise_root(root: Key, facts: Mapping[str, Any]) -> Key:
    """Return the key of which a run's noise is drawn.

    Args:
        root: The run's root key. A secure one is fresh entropy, and is the noise's root too.
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
    """Return the key of which the noise of a run in memory is drawn.

    Of its data no more is known than the roster.

    Args:
        root: The root key.
        components: Of the run.
        start: Params before the first round, or of a later one.
    """
    experiment = getattr(components, "experiment", None)
    described = None if experiment is None else _trained(experiment)
    return noise_root(
        root, {NOISE: training_digest(components.plan, components.task.roster, start, described)}
    )


def _trained(experiment: Experiment) -> dict[str, Any]:
    """Return the options and kinds of the chosen parts, and the name that stands for code."""
    task, options = type(experiment.task), experiment.identity()
    custom = (
        not task.__module__.startswith("fedpriv.")
        or not type(experiment).__module__.startswith("fedpriv.")
        or experiment.refine
        or experiment.statistics
        or experiment.bounds
    )
    return {
        "options": {name: options[name] for name in options if name not in NOT_TRAINED},
        "task": task.__qualname__,
        "code": experiment.name if custom else None,
    }


def _digest(plan: Mapping[str, Any], **described: Any) -> str:
    plan = {name: value for name, value in plan.items() if name not in DETAILS}
    return document_sha256({"version": _VERSION, "plan": plan, **described})
