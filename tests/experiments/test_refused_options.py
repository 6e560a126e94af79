"""Options that would do nothing are refused; a start from a file is that of the file.

That every other option has an effect is what the baseline records: `tests/oracles/options.py`.
"""

from functools import partial
from itertools import islice

import numpy as np
import pytest
from torch import nn

from fedpriv.checkpoints.tensor_files import AGGREGATE, write_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.ready_made.image_users import ImagesByUser
from fedpriv.experiments.tasks import NextWordsTask, TagPredictionTask
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.refusals import refuses
from tests.tasks.sixty import features_and_labels
from tests.tasks.sixty import sixty as made_sixty

USERS, ROUNDS = 5, 3
NOISE = Key.simulation(7)


def examples(number, rows=12):
    """Rows of three normals, and labels of two classes."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return x, (x @ [1.0, -1.0, 0.5] > 0).astype(int)


def sixty(experiment):
    """A training set of sixty examples, a third of them public too."""
    x, y = (part[20:40] for part in features_and_labels())
    return made_sixty(public=LogisticGradients(x, y), num_public=20)


ROUND = {"noise.multiplier": 1.0, "l2-clip-norm": 0.5}
BASES = {
    ("user", "averaging"): {
        **ROUND, "rounds": ROUNDS, "cohort": float(USERS), "local.batch-size": 4,
        "local.learning-rate": 0.5,
    },
    ("user", "agd"): {"target-epsilon": 20.0, "iterations": 3},
    ("user", "bolt-on"): {
        "target-epsilon": 2.0, "regulariser": 0.01, "radius": 10.0, "passes": 2,
        "users-per-update": 2,
    },
    ("example", "averaging"): {**ROUND, "steps": ROUNDS, "batch-size": 20.0},
}  # fmt: skip
APART = {"sampling": "separated", "cohort": 2.0, "min-separation": 1}


def built(of, task, corpus, options):
    delta = None if of[1] == "bolt-on" else 1e-2
    made = classes()[of](name="own", description="", task=task, delta=delta)
    return build(made.with_options(options), corpus)


def outcome(components):
    """Bytes of every param of three rounds, whose noise is of one key."""
    played = rounds(components, serial(components.experiment, components), Key.simulation(0),
                    noise=NOISE, eval_every=1)  # fmt: skip
    return [
        array.tobytes() for _, state in islice(played, ROUNDS) for array in state.params.values()
    ]


def test_a_start_from_a_file(tiny_corpus, tmp_path):
    of, task = ("user", "averaging"), TagPredictionTask(users=USERS)
    plain = {**BASES[of], "start": "file"}
    found = []
    for number in range(2):
        params = task(None, tiny_corpus).init_params(Key.simulation(0))
        moved = {name: array + np.float32(number) for name, array in params.items()}
        average = {AGGREGATE + name: array + np.float32(5.0) for name, array in params.items()}
        path = tmp_path / f"{number}.safetensors"
        write_tensors(path, {**moved, **average})
        for which in ("last", "ema"):
            given = {**plain, "start.file": str(path), "start.which": which}
            found.append(outcome(built(of, task, tiny_corpus, given)))
    assert len({str(seen) for seen in found}) == 3  # both files have the same average


WORDS = {"noise.multiplier": 1.0, "l2-clip-norm": 0.5, "rounds": ROUNDS, "cohort": 5.0}


@pytest.mark.parametrize(
    ("of", "task", "options", "named"),
    [
        (("user", "averaging"), partial(TagPredictionTask, tf_idf_power=1.0), WORDS,
         "tf-idf-power"),
        (("user", "averaging"), partial(TagPredictionTask, pair_weight=1.0), WORDS, "pair-weight"),
        (("user", "averaging"), partial(NextWordsTask, shift_period=4), WORDS, "shift-period"),
        (("user", "averaging"), partial(NextWordsTask, word_gain=4.0), WORDS, "word-gain"),
        (("user", "averaging"), partial(ImagesByUser, alpha=1.0, partition="uniform"), WORDS,
         "alpha"),
        (("user", "averaging"), partial(ImagesByUser, shards=3), WORDS, "shards"),
        (("user", "averaging"), partial(ImagesByUser, skew=0.5), WORDS, "skew"),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "release-preconditioner": "delayed", "delay-plain": 3}, "delay-plain",
        ),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "server": "ftrl", "server.restart": 3}, 3,
        ),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "noise": "tree", **APART, "noise.restart": 3}, 3,
        ),
        (
            ("user", "agd"), TagPredictionTask(), {"target-epsilon": 8.0, "prices": "paper",
            "gradient-share": 0.3}, "gradient-share",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "warm-start-rate": 0.2}, "warm-start-rate",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "optimizer": "ftrl", "optimizer.restart": ROUNDS}, ROUNDS,
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "preconditioner": "ideal", "noise.multiplier": None, "target-epsilon": 8.0},
            "target-epsilon 8",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "preconditioner": "ideal", "target-epsilon": 8.0}, "target-epsilon 8",
        ),
        (
            ("user", "bolt-on"), TagPredictionTask(), {**BASES["user", "bolt-on"],
            "output-noise": "none"}, "target-epsilon 2",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "preconditioner": "delayed", "delay-plain": 3}, "delay-plain",
        ),
    ],
)  # fmt: skip
def test_what_would_have_none_is_refused(of, task, options, named, tiny_corpus):
    with refuses(ValueError, named):
        task = task() if isinstance(task, partial) else task
        built(of, task, tiny_corpus if of[0] == "user" else None, options)


@pytest.mark.parametrize("method", ["agd", "bolt-on"])
def test_tensors_of_rounds_that_a_method_does_not_send_are_refused(method):
    class Rounds(ModuleTask):
        @property
        def round_tensors(self):
            return lambda round_num: {"round": np.array([round_num], np.float32)}

    made = Rounds(
        name="five", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy,
        users={"a": examples(0), "b": examples(1)}, synthetic=True,
    )  # fmt: skip
    with refuses(ValueError, "round_tensors"):
        built(("user", method), lambda experiment: made, None, BASES["user", method])
