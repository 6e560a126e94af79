"""Short runs of tag prediction, in which a bug of the reference would show."""

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds


def experiment(**options):
    made = FederatedExperiment(
        name="bugs", description="", rounds=6, delta=1e-3, presets={"preconditioner-top": 10}
    ).with_options(
        {"noise_multiplier": 1.0, "cohort": 6.0, "l2_clip_norm": 0.5, "local_learning_rate": 2.0}
    )
    return made.with_options({name.replace("_", "-"): v for name, v in options.items()})


def states(made, corpus, backend=None, seed=0):
    components = build(made, corpus)
    backend = backend or SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    root = Key.simulation(seed)  # and the noise is of the seed alone: experiments are compared
    found = [
        (record, {n: t.copy() for n, t in state.params.items()})
        for record, state in rounds(
            components, backend, root, noise=root, eval_every=made.eval_every
        )
    ]
    return components, found
