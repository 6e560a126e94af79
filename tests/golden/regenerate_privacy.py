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

POISSON = [  # id, q, sigma, rounds, delta, printed PLD add-remove, printed PLD replace-one
    ("P1", Q, 0.3, 100, DELTA, "43.5359", "47.2055"),
    ("P3", Q, 0.3, 1000, DELTA, "210.4507", "245.7491"),
    ("P4", Q, 0.5, 100, DELTA, "10.7913", "12.7268"),
    ("P6", Q, 0.5, 1000, DELTA, "43.9441", "60.0220"),
    ("P7", Q, 0.75, 100, DELTA, "3.6945", "5.0355"),
    ("P9", Q, 0.75, 1000, DELTA, "14.1873", "23.1592"),
    ("P10", Q, 1.0, 100, DELTA, "1.9059", "3.0310"),
    ("P12", Q, 1.0, 1000, DELTA, "7.3976", "13.7641"),
    ("P13", Q, 1.5, 100, DELTA, "0.9036", "1.7188"),
    ("P15", Q, 1.5, 1000, DELTA, "3.5774", "7.5293"),
    ("P16", Q, 2.0, 100, DELTA, "0.5803", "1.1938"),
    ("P18", Q, 2.0, 1000, DELTA, "2.3197", "5.1079"),
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
SAMPLES = [  # sample-level runs, likewise
    ("S1", 0.05, 0.3, 40, 0.0025, "26.5089", None),
    ("S2", 0.00256, 1.0, 12500, 1e-5, "1.4995", None),
    ("S3", 0.00256, 1.0, 3907, 1e-5, "0.8156", None),
    ("S5", 0.00256, 1.0, 39063, 1e-5, "2.7886", None),
    ("S6", 64 / 246092, 1.0, 38452, 1e-6, "0.2656", None),
    ("S8", 64 / 246092, 1.0, 384519, 1e-6, "0.8981", None),
    ("S12", 64 / 60000, 0.75, 9375, 1e-5, "0.9964", None),
    ("S17", 64 / 60000, 1.0, 93750, 1e-5, "1.6983", None),
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


def poisson(name, prob, sigma, rounds, delta, add, replace, **more):
    ours = {"kind": "poisson-gaussian", "noise_multiplier": sigma, "sampling_prob": prob}
    theirs = dp.PoissonSampledDpEvent(prob, dp.GaussianDpEvent(sigma))
    interval, plan = 1e-3 if sigma < 0.4 else 1e-4, (rounds, delta, "add-remove")
    yield row(name, ours, theirs, plan, add, interval=interval, by_rdp=theirs, **more)
    if replace is not None:
        yield row(name, ours, theirs, (rounds, delta, "replace-one"), replace, interval=1e-3)


def capped(name, cap, *both):
    ours = {"kind": "truncated-poisson-gaussian", "noise_multiplier": 1.0, "sampling_prob": Q}
    theirs = dp.dp_event.TruncatedSubsampledGaussianDpEvent(400, Q, cap, 1.0)
    for relation, printed in zip(RELATIONS, both, strict=True):
        event = ours | {"num_users": 400, "cap": cap}
        yield row(name, event, theirs, (100, DELTA, relation), printed, interval=1e-4)


def fixed(name, sigma, rounds, printed, least):
    ours = {"kind": "fixed-size-gaussian", "noise_multiplier": sigma, "num_users": 400, "size": 20}
    theirs = dp.SampledWithoutReplacementDpEvent(400, 20, dp.GaussianDpEvent(sigma / 2))
    plan = (rounds, DELTA, "replace-one")
    yield row(name, ours, theirs, plan, printed, by_rdp=theirs, at_least=least)


def gaussian(printed, relation, sigma_of_rdp):
    """Return a row of σ 20; dp-accounting's RDP does not double the sensitivity by itself."""
    ours, theirs = {"kind": "gaussian", "noise_multiplier": 20.0}, dp.GaussianDpEvent(20.0)
    plan, by_rdp = (100, DELTA, relation), dp.GaussianDpEvent(sigma_of_rdp)
    yield row("G1", ours, theirs, plan, printed, interval=1e-4, by_rdp=by_rdp)


def rows():
    for make, given in ((poisson, POISSON), (capped, CAPPED), (fixed, FIXED), (poisson, SAMPLES)):
        for one in given:
            yield from make(*one)
    yield from gaussian("1.193773", "add-remove", 20.0)
    yield from gaussian("2.8361", "replace-one", 10.0)
    opacus = ("opacus", 0.04, 1.5, 2250, 1e-5, None, None)
    yield from poisson(*opacus, printed_rdp="7.32911117143")


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
