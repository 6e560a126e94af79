"""A small experiment, and some rounds of any."""

from itertools import islice

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds


def base(**options):
    made = FederatedExperiment(name="base", description="", rounds=4, delta=1e-3).with_options(
        {"noise_multiplier": 1.0, "cohort": 6.0, "l2_clip_norm": 0.5}
    )
    made = made.with_options({name.replace("_", "-"): v for name, v in options.items()})
    top = "precondition.side_information.preconditioner_top"
    few = made.options().get(top) == 100 and "preconditioner_top" not in options
    return made.with_options({top: 10}) if few else made


def run_some(components, number):
    backend = SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    run = rounds(components, backend, Key.simulation(0), eval_every=2)
    return list(islice(run, number))


def all_finite(params):
    return all(np.isfinite(array).all() for array in params.values())
