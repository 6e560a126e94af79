"""Short runs of tag prediction, in which a bug of the reference would show."""

from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from tests.experiments.small import base


def experiment(**options):
    return base(**{"rounds": 6, "local_learning_rate": 2.0, **options})


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
