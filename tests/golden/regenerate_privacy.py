"""Regenerate privacy.json from dp-accounting's own accountants, without any code of fedpriv.

Run it after an upgrade, from the repository root, and read the difference before committing it:

    python tests/golden/regenerate_privacy.py

`printed` holds the figures of the project's privacy notes as printed there (strings, so that the
last digit shows the rounding); everything else is computed here.
"""

import importlib.metadata
import json
import logging
import sys
from pathlib import Path

import dp_accounting as dp
from absl import logging as absl_logging
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

RELATIONS = {
    "add-remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dp.NeighboringRelation.REPLACE_ONE,
}
Q, DELTA = 0.05, 1 / 400

POISSON = [  # id, sigma, rounds, printed PLD add-remove, printed PLD replace-one
    ("P1", 0.3, 100, "43.5359", "47.2055"),
    ("P3", 0.3, 1000, "210.4507", "245.7491"),
    ("P4", 0.5, 100, "10.7913", "12.7268"),
    ("P6", 0.5, 1000, "43.9441", "60.0220"),
    ("P7", 0.75, 100, "3.6945", "5.0355"),
    ("P9", 0.75, 1000, "14.1873", "23.1592"),
    ("P10", 1.0, 100, "1.9059", "3.0310"),
    ("P12", 1.0, 1000, "7.3976", "13.7641"),
    ("P13", 1.5, 100, "0.9036", "1.7188"),
    ("P15", 1.5, 1000, "3.5774", "7.5293"),
    ("P16", 2.0, 100, "0.5803", "1.1938"),
    ("P18", 2.0, 1000, "2.3197", "5.1079"),
]
FIXED = [  # id, sigma, rounds, printed RDP at sigma / 2, printed lower bound of any accountant
    ("W1", 0.3, 100, "3919.2179", None),
    ("W2", 0.3, 1000, "39150.7322", None),
    ("W4", 0.5, 1000, "10706.3103", None),
    ("W5", 0.75, 100, "201.0018", None),
    ("W7", 1.0, 100, "28.7421", "10.7914"),
    ("W8", 1.0, 1000, "245.9742", "43.9442"),
    ("W10", 1.5, 1000, "33.7595", "14.1874"),
    ("W11", 2.0, 100, "4.2799", "1.9059"),
]
CAPPED = [  # id, cap, printed PLD add-remove, printed PLD replace-one
    ("C1", 20, "7.8719", "8.1432"),
    ("C3", 30, "2.7653", "3.5748"),
    ("C5", 40, "1.9072", "3.0319"),
]
SAMPLES = [  # id, q, sigma, rounds, delta, printed PLD
    ("S1", 0.05, 0.3, 40, 0.0025, "26.5089"),
    ("S2", 0.00256, 1.0, 12500, 1e-5, "1.4995"),
    ("S3", 0.00256, 1.0, 3907, 1e-5, "0.8156"),
    ("S5", 0.00256, 1.0, 39063, 1e-5, "2.7886"),
    ("S6", 64 / 246092, 1.0, 38452, 1e-6, "0.2656"),
    ("S8", 64 / 246092, 1.0, 384519, 1e-6, "0.8981"),
    ("S12", 64 / 60000, 0.75, 9375, 1e-5, "0.9964"),
    ("S17", 64 / 60000, 1.0, 93750, 1e-5, "1.6983"),
]


def pld(event, rounds, delta, relation, interval):
    accountant = PLDAccountant(
        neighboring_relation=RELATIONS[relation], value_discretization_interval=interval
    )
    return accountant.compose(event, rounds).get_epsilon(delta)


def rdp(event, rounds, delta, relation):
    accountant = RdpAccountant(neighboring_relation=RELATIONS[relation])
    return accountant.compose(event, rounds).get_epsilon(delta)


def row(name, ours, theirs, plan, printed, *, interval=None, by_rdp=None, **more):
    """Return a row; `interval` is the grid of its loss, `by_rdp` the event of its curve."""
    rounds, delta, relation = plan
    return {
        "id": f"{name} {relation}",
        "event": ours,
        "relation": relation,
        "rounds": rounds,
        "delta": delta,
        "printed": printed,
        "accountant": "RDP" if interval is None else "PLD",
        "pld": None if interval is None else pld(theirs, *plan, interval),
        "rdp": None if by_rdp is None else rdp(by_rdp, *plan),
        **more,
    }


def poisson(prob, sigma):
    """Return our event of Poisson cohorts, and theirs."""
    ours = {"kind": "poisson-gaussian", "noise_multiplier": sigma, "sampling_prob": prob}
    return ours, dp.PoissonSampledDpEvent(prob, dp.GaussianDpEvent(sigma))


def rows():
    for name, sigma, rounds, add, replace in POISSON:
        ours, theirs = poisson(Q, sigma)
        interval = 1e-3 if sigma < 0.4 else 1e-4
        plan = (rounds, DELTA, "add-remove")
        yield row(name, ours, theirs, plan, add, interval=interval, by_rdp=theirs)
        yield row(name, ours, theirs, (rounds, DELTA, "replace-one"), replace, interval=1e-3)
    for name, cap, *both in CAPPED:
        ours = {
            "kind": "truncated-poisson-gaussian",
            "noise_multiplier": 1.0,
            "sampling_prob": Q,
            "num_users": 400,
            "cap": cap,
        }
        theirs = dp.dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=400, sampling_probability=Q, truncated_batch_size=cap, noise_multiplier=1.0
        )
        for relation, printed in zip(RELATIONS, both, strict=True):
            yield row(name, ours, theirs, (100, DELTA, relation), printed, interval=1e-4)
    for name, sigma, rounds, printed, least in FIXED:
        ours = {
            "kind": "fixed-size-gaussian",
            "noise_multiplier": sigma,
            "num_users": 400,
            "size": 20,
        }
        theirs = dp.SampledWithoutReplacementDpEvent(400, 20, dp.GaussianDpEvent(sigma / 2))
        plan = (rounds, DELTA, "replace-one")
        yield row(name, ours, theirs, plan, printed, by_rdp=theirs, at_least=least)
    for name, q, sigma, rounds, delta, printed in SAMPLES:
        ours, theirs = poisson(q, sigma)
        plan, interval = (rounds, delta, "add-remove"), 1e-3 if sigma < 0.4 else 1e-4
        yield row(name, ours, theirs, plan, printed, interval=interval, by_rdp=theirs)
    # dp-accounting's RDP does not double the sensitivity under replace-one: half the noise.
    ours, theirs = {"kind": "gaussian", "noise_multiplier": 20.0}, dp.GaussianDpEvent(20.0)
    for relation, printed, sigma in (
        ("add-remove", "1.193773", 20.0),
        ("replace-one", "2.8361", 10.0),
    ):
        plan, by_rdp = (100, DELTA, relation), dp.GaussianDpEvent(sigma)
        yield row("G1", ours, theirs, plan, printed, interval=1e-4, by_rdp=by_rdp)
    ours, theirs = poisson(0.04, 1.5)
    yield row(
        "opacus",
        ours,
        theirs,
        (2250, 1e-5, "add-remove"),
        None,
        interval=1e-4,
        by_rdp=theirs,
        printed_rdp="7.32911117143",
    )


def main():
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.disable(logging.WARNING)
    packages = ("dp-accounting", "numpy", "scipy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    document = {"versions": {"python": sys.version.split()[0], **versions}, "rows": list(rows())}
    target = Path(__file__).with_name("privacy.json")
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
