"""The root of a run's noise: two experiments at one seed add noise that is independent.

A simulation's randomness is made of its seed. Were the noise made of nothing else, two runs at the
default seed would add the same, and whoever has both models would subtract it: of two experiments,
or of two training sets that differ in one user. So the noise is drawn from a key into which a
digest of the experiment is folded as well. Cohorts, users and the first params are those of the
seed alone, so that methods are compared on the same users.

What the digest is of changes what is trained on or how; what only changes who works, what is
measured or where it is written is not in it, so the same experiment gives the same numbers on every
backend. It stands in the ledger's first line: a run is resumed with the noise that it began with,
and one that was written before there was such a line goes on with its seed's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.hashes import document_sha256
from fedpriv.privacy.plan import AnyPlan
from fedpriv.rng import Key
from fedpriv.tree import Params

#: Options that change what is measured or written, and nothing that is trained.
NOT_TRAINED = frozenset({"eval_every"})
NOISE = "noise_sha256"
"""What the digest is called among the further facts of a ledger's first line."""
_DESCRIBED = ("name", "roster_sha256", "num_users", "num_public_users")


def noise_digest(document: Mapping[str, Any]) -> str:
    """Return what distinguishes the noise of a simulation, 64 hex digits.

    Two data sets have noise of their own where the task says what its data are (`data_sha256`, as
    every prepared corpus does), or describes them otherwise.

    Args:
        document: Of its experiment.json.
    """
    options, corpus = dict(document["experiment"]), document["corpus"]
    return document_sha256(
        {
            "name": document["name"],
            "options": {name: options[name] for name in options if name not in NOT_TRAINED},
            "plan": document["plan"],
            "data": corpus.get("data_sha256") or {name: corpus.get(name) for name in _DESCRIBED},
        }
    )


def plan_digest(plan: AnyPlan, roster: Sequence[str], start: Params) -> str:
    """Return what distinguishes the noise of a training of one's own.

    Args:
        plan: The promise.
        roster: The frozen ids; the users' data are not known here.
        start: What the first round starts from.
    """
    shapes = {name: list(array.shape) for name, array in start.items()}
    return document_sha256({"plan": plan.to_json(), "roster": list(roster), "shapes": shapes})


def noise_root(root: Key, facts: Mapping[str, Any]) -> Key:
    """Return the key of which a run's noise is drawn.

    Args:
        root: The run's root key. A secure one is entropy of its own, and is the noise's root too.
        facts: Of the ledger's first line; without a digest the noise is of the seed alone.
    """
    digest = facts.get(NOISE)
    if root.mode == "secure" or digest is None:
        return root
    return root.fold("experiment").fold(str(digest))
