"""How surely an audit of so many canaries refutes a broken mechanism: the power behind the tests.

    python -m tests.audit.power 100

Each mechanism is drawn from its law instead of being run, which takes milliseconds: a canary that
is in takes part by its coin and adds its length, the noise is Gaussian. Scores and bounds are the
audit's own. Printed for every setting and fault: in how many of so many audits it was refuted, and
the least and the mean bound over the stated ε.
"""

import sys
from dataclasses import replace

import numpy as np

from fedpriv.audit.bounds import clopper_pearson, simultaneous
from fedpriv.audit.canaries import Trials, _log_ratio, scores_of
from fedpriv.audit.run import FALSE_ALARM
from fedpriv.mechanisms import bounds
from fedpriv.training import bounded_sum
from tests.audit.broken import BROKEN, SETTINGS, Setting, has_meaning, sized

#: How long an update is, how often its user is counted, and what part of the noise is added.
LAWS = {
    "right": (1.0, 1, 1.0),
    "sensitivity 2C": (2.0, 1, 1.0),
    "noise/2": (1.0, 1, 0.5),
    "noise/sqrt(T)": (1.0, 1, 0.0),
    "shared noise": (1.0, 1, 1.0),
    "no clip": (100.0, 1, 1.0),
    "user counted twice": (1.0, 2, 1.0),
    "noise*0.8": (1.0, 1, 0.8),
}


def bound(setting: Setting, name: str, generator: np.random.Generator) -> float:
    """Return the bound of one audit of a mechanism that is drawn from its law."""
    plan, number = setting.plan(), setting.trials
    length, count, part = LAWS[name]
    if name == "noise/sqrt(T)":
        part = max(setting.rounds, 2) ** -0.5
    inside = generator.random(number) < 0.5
    ratio, total = np.zeros(number), np.zeros(number)
    highest, lowest = np.full(number, -np.inf), np.full(number, np.inf)
    shared = generator.normal(size=number)
    for number_of_round in range(setting.rounds):
        noise = shared if name == "shared noise" else generator.normal(size=number)
        here = inside & (generator.random(number) < setting.share)
        sign = -1.0 if number_of_round % 2 else 1.0
        released = part * setting.sigma * noise + sign * count * length * here
        ratio += _log_ratio(sign * released, plan)
        total += released
        np.maximum(highest, released, out=highest)
        np.minimum(lowest, released, out=lowest)
    mean = total / setting.rounds
    apart = np.maximum(highest - mean, mean - lowest)
    kinds = scores_of([Trials(inside=inside, log_ratio=ratio, standing_out=apart)])
    kinds = kinds if setting.rounds > 1 else kinds[:1]
    found = (form(kinds, delta=plan.delta, alpha=FALSE_ALARM / 2) for form in _FORMS)
    return max(one.epsilon for one in found)


_FORMS = (simultaneous, clopper_pearson)


def main(audits: int, sizes: list[int]) -> None:
    """Print the power of audits, with the tests' numbers of canaries or with others."""
    bounded_sum.EXCESS = bounds.EXCESS = (
        np.inf
    )  # the sum refuses what two of these do; an audit is to see it
    generator = np.random.default_rng(0)
    print("| σ, q, T | mechanism | canaries | refuted | bound / stated ε, least (mean) |")
    print("|---|---|---:|---:|---:|")
    for setting in SETTINGS:
        for name in ("right", *BROKEN, "noise*0.8"):
            if not has_meaning(setting, name):
                continue
            standard = sized(setting, name)
            for trials in sizes or [standard.trials]:
                found = np.array(
                    [
                        bound(replace(standard, trials=trials), name, generator)
                        for _ in range(audits)
                    ]
                )
                share = found / setting.epsilon
                print(
                    f"| {setting.sigma:g}, {setting.share:g}, {setting.rounds} | {name} | "
                    f"{trials:,} | {(share > 1).sum()} of {audits} | "
                    f"{share.min():.2f} ({share.mean():.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
