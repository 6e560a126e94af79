"""Short runs of tag prediction, and what their folders hold."""

import importlib
from pathlib import Path

from fedpriv.backends import SerialBackend
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.runs.prepared import start_run

ROOT = Path(__file__).parents[2]
NOISE = importlib.import_module("fedpriv.mechanisms.gaussian")
OPTIONS = {
    "rounds": 6,
    "noise-multiplier": 1.0,
    "cohort": 6.0,
    "delta": 1e-3,
    "l2-clip-norm": 0.5,
    "eval-every": 2,
    "server": "ema-momentum",
    "aggregate": "ema",
    "seed": 11,
}
RELEASED = {
    "round_num",
    "attempt",
    "epsilon",
    "epsilon_charges",
    "delta",
    "accuracy_public",
    "recall_at_5_public",
    "update_norm",
}


def start(corpus, out, *, secure=False, make_backend=None, **options):
    changes = {**OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
    if changes.get("noise") == "none":
        del changes["noise-multiplier"]
    experiment = load_experiment("dp-fedavg-tags").with_options(changes)
    extra = {} if make_backend is None else {"make_backend": make_backend}
    return start_run(experiment, "dp-fedavg-tags", corpus, out, secure=secure, **extra)


def stopping(number, error=KeyboardInterrupt):
    """A backend that fails in its so-many-th round, after the cohort was drawn."""

    class Stopping(SerialBackend):
        calls = 0

        def partial_sum(self, **arguments):
            type(self).calls += 1
            if self.calls == number:
                raise error
            return super().partial_sum(**arguments)

    return lambda experiment, components: Stopping(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )


def ledger_state(folder):
    return read_ledger(folder / "ledger.jsonl")[1]


def pairs(lines):
    return [(line["round_num"], line["attempt"]) for line in lines]


def charged(folder):
    return [(charge.round_num, charge.attempt) for charge in ledger_state(folder).charges]
