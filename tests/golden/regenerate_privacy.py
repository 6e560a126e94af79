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

ADD, REPLACE = (dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE)
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
        neighboring_relation=relation, value_discretization_interval=interval
    )
    return accountant.compose(event, rounds).get_epsilon(delta)


def rdp(event, rounds, delta, relation):
    accountant = RdpAccountant(neighboring_relation=relation)
    return accountant.compose(event, rounds).get_epsilon(delta)


def row(name, kind, relation, rounds, delta, printed, **values):
    return {
        "id": f"{name} {relation}",
        "event": kind,
        "relation": relation,
        "rounds": rounds,
        "delta": delta,
        "printed": printed,
        **values,
    }


def rows():
    for name, sigma, rounds, add, replace in POISSON:
        ours = {"kind": "poisson-gaussian", "noise_multiplier": sigma, "sampling_prob": Q}
        theirs = dp.PoissonSampledDpEvent(Q, dp.GaussianDpEvent(sigma))
        interval = 1e-3 if sigma < 0.4 else 1e-4
        yield row(
            name,
            ours,
            "add-remove",
            rounds,
            DELTA,
            add,
            accountant="PLD",
            pld=pld(theirs, rounds, DELTA, ADD, interval),
            rdp=rdp(theirs, rounds, DELTA, ADD),
        )
        yield row(
            name,
            ours,
            "replace-one",
            rounds,
            DELTA,
            replace,
            accountant="PLD",
            pld=pld(theirs, rounds, DELTA, REPLACE, 1e-3),
            rdp=None,
        )
    for name, cap, add, replace in CAPPED:
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
        for relation, name_of, printed in (
            (ADD, "add-remove", add),
            (REPLACE, "replace-one", replace),
        ):
            yield row(
                name,
                ours,
                name_of,
                100,
                DELTA,
                printed,
                accountant="PLD",
                pld=pld(theirs, 100, DELTA, relation, 1e-4),
                rdp=None,
            )
    for name, sigma, rounds, printed, least in FIXED:
        ours = {
            "kind": "fixed-size-gaussian",
            "noise_multiplier": sigma,
            "num_users": 400,
            "size": 20,
        }
        theirs = dp.SampledWithoutReplacementDpEvent(400, 20, dp.GaussianDpEvent(sigma / 2))
        yield row(
            name,
            ours,
            "replace-one",
            rounds,
            DELTA,
            printed,
            accountant="RDP",
            pld=None,
            rdp=rdp(theirs, rounds, DELTA, REPLACE),
            at_least=least,
        )
    for name, q, sigma, rounds, delta, printed in SAMPLES:
        ours = {"kind": "poisson-gaussian", "noise_multiplier": sigma, "sampling_prob": q}
        theirs = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma))
        yield row(
            name,
            ours,
            "add-remove",
            rounds,
            delta,
            printed,
            accountant="PLD",
            pld=pld(theirs, rounds, delta, ADD, 1e-3 if sigma < 0.4 else 1e-4),
            rdp=rdp(theirs, rounds, delta, ADD),
        )
    gaussian = {"kind": "gaussian", "noise_multiplier": 20.0}
    theirs = dp.GaussianDpEvent(20.0)
    yield row(
        "G1",
        gaussian,
        "add-remove",
        100,
        DELTA,
        "1.193773",
        accountant="PLD",
        pld=pld(theirs, 100, DELTA, ADD, 1e-4),
        rdp=rdp(theirs, 100, DELTA, ADD),
    )
    # dp-accounting's RDP does not double the sensitivity under replace-one: half the noise.
    yield row(
        "G1",
        gaussian,
        "replace-one",
        100,
        DELTA,
        "2.8361",
        accountant="PLD",
        pld=pld(theirs, 100, DELTA, REPLACE, 1e-4),
        rdp=rdp(dp.GaussianDpEvent(10.0), 100, DELTA, REPLACE),
    )
    opacus = dp.PoissonSampledDpEvent(0.04, dp.GaussianDpEvent(1.5))
    yield row(
        "opacus",
        {"kind": "poisson-gaussian", "noise_multiplier": 1.5, "sampling_prob": 0.04},
        "add-remove",
        2250,
        1e-5,
        None,
        accountant="PLD",
        pld=pld(opacus, 2250, 1e-5, ADD, 1e-4),
        rdp=rdp(opacus, 2250, 1e-5, ADD),
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
