"""Short runs of tag prediction, and what their folders hold."""

import contextlib
import importlib

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.datasets.importers.synthetic import Shape
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.runs.backends import serial
from fedpriv.runs.prepared import start_run

NOISE = importlib.import_module("fedpriv.mechanisms.gaussian")
OPTIONS = {
    "rounds": 6, "noise-multiplier": 1.0, "cohort": 6.0, "delta": 1e-3, "l2-clip-norm": 0.5,
    "eval-every": 2, "server": "ema-momentum", "aggregate": "ema", "seed": 11,
}  # fmt: skip
SMALL = {
    "shape": Shape(
        num_users=20, num_sentences=400, public_users=8, num_words=200, num_tags=10, num_topics=4
    ),
    "max_words": 40,
    "max_tags": 3,
}
"""A corpus of as many words and tags whatever its text is, so that models have the same shape."""
RELEASED = {
    "round_num", "attempt", "epsilon", "epsilon_charges", "delta", "accuracy_public",
    "recall_at_5_public", "update_norm",
}  # fmt: skip


def start(corpus, out, *, secure=False, make_backend=serial, anchor=None, **options):
    changes = {**OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
    if changes.get("noise") == "none":
        del changes["noise-multiplier"]
    experiment = load_experiment("dp-fedavg-tags").with_options(changes)
    return start_run(
        experiment, "dp-fedavg-tags", corpus, out, secure=secure, make_backend=make_backend,
        anchor=anchor,
    )  # fmt: skip


def interrupted(corpus, out, after=4, **options):
    """Return the folder of a run that ended in its so-many-th round, after the cohort was drawn."""
    with pytest.raises(KeyboardInterrupt):
        start(corpus, out, make_backend=stopping(after), **options).run()
    return out


def stopping(number, error=KeyboardInterrupt):
    """A backend that fails in its so-many-th round, after the cohort was drawn."""

    class Stopping(SerialBackend):
        trains_again, calls = False, 0  # one sum a round

        def sum(self, request, attempt, cohort):
            type(self).calls += 1
            if self.calls == number:
                raise error
            return super().sum(request, attempt, cohort)

    return lambda experiment, components: Stopping(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )


def checkpoint(folder, round_num=None):
    """Return the tensors that a run released in a round, the last one if none is named."""
    store = CheckpointStore(folder / "checkpoints")
    return store.load(store.rounds()[-1] if round_num is None else round_num)[0]


def iterate(tensors):
    return {name: array for name, array in tensors.items() if "/" not in name}


def average(tensors):
    return {name.removeprefix("ema/"): array for name, array in tensors.items() if "/" in name}


def same(left, right):
    return set(left) == set(right) and all(np.array_equal(left[n], right[n]) for n in left)


def ledger_state(folder):
    return read_ledger(folder / "ledger.jsonl")[1]


def pairs(lines):
    return [(line["round_num"], line["attempt"]) for line in lines]


def charged(folder):
    return [(charge.round_num, charge.attempt) for charge in ledger_state(folder).charges]


@contextlib.contextmanager
def unchanged(*folders):
    """Assert that a block changes no file or link of some folders."""
    before = [_contents(folder) for folder in folders]
    yield
    assert [_contents(folder) for folder in folders] == before


def _contents(place):
    """Return every file of a folder, links as what they point to."""
    return {
        path: path.readlink() if path.is_symlink() else path.read_bytes()
        for path in [place, *place.rglob("*")]
        if path.is_symlink() or path.is_file()
    }
