"""A clip norm that adapts: the vector users send, the count, the step, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fedpriv.training.adaptive_clipping import CLIP, AdaptiveClip

from fedpriv import tree
from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.training.work import UserByUser, UserTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, assert_same

PARAMS = {"w": np.zeros((4, 2), np.float32), "b": np.zeros(3, np.float32)}
CLIPPING = AdaptiveClip(initial=3.0, least=1e-3, most=1e3)


def update(norm, seed=0):
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal(a.shape) for name, a in PARAMS.items()}
    scale = norm / tree.l2_norm(made)
    return {name: (scale * a).astype(np.float32) for name, a in made.items()}


class Sending(UserTrainer):
    """A trainer whose user sends what it has."""

    thread_safe = True

    def train(self, params, context, examples, key):
        assert set(params) == set(PARAMS)
        return examples


def sent_under(clip, clip_norm, examples):
    work = UserByUser(trainer=Sending(), transform=clip)
    params = {**PARAMS, CLIP: np.array([clip_norm], np.float32)}
    return work.contribution(params, examples, KEY)


def test_a_users_vector_is_no_longer_than_one(subtests):
    for clip_norm in [1e-3, 0.7, 1.0, 50.0]:
        for norm in [0.0, 1e-20, 0.5, 0.7, 1.0, 3.0, 1e4, 1e30]:
            for weight in [0.05, 0.2, 0.9]:
                with subtests.test(clip_norm=clip_norm, norm=norm, weight=weight):
                    clip = replace(CLIPPING, count_weight=weight)
                    own = update(norm) if norm else PARAMS
                    sent = sent_under(clip, clip_norm, own)
                    assert tree.l2_norm(sent) <= 1 + 1e-6
                    below = tree.l2_norm(own) <= float(np.float32(clip_norm))
                    assert sent[CLIP][0] == pytest.approx(weight if below else -weight)
                    length = math.sqrt(1 - weight**2) * min(1, norm / clip_norm)
                    sent.pop(CLIP)
                    assert tree.l2_norm(sent) == pytest.approx(length, rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"initial": 2e3}, {"least": 0.0}, {"most": math.inf}, {"least": 4.0}],
    ids=str,
)
def test_limits_that_do_not_hold_it_are_refused(wrong):
    with refuses(ValueError, "clip-least", "clip-most"):
        replace(CLIPPING, **wrong)


OPTIONS = {
    "clip-norm": "adaptive",
    "l2-clip-norm": 0.5,
    "rounds": 6,
    "cohort": 12.0,
    "target-epsilon": None,
    "noise-multiplier": 1.0,
    "start": "fresh",
}


@pytest.mark.slow
def test_a_run_is_resumed_where_its_clip_norm_was(tiny_corpus, tmp_path):
    made = load_experiment("adadps-tags").with_options(OPTIONS)
    start_run(made, "adadps-tags", tiny_corpus, tmp_path / "whole").run()
    broken = start_run(made, "adadps-tags", tiny_corpus, tmp_path / "broken")

    def stop(record):
        if record.released.round_num == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.run(on_round=stop)
    broken.folder.close()
    resume_run(tmp_path / "broken").run()
    whole, again = (
        read_tensors(tmp_path / run / "state.safetensors")[0] for run in ("whole", "broken")
    )
    assert any("clip" in name for name in whole)
    assert_same(again, whole)
    said = str(run_statement(tmp_path / "whole").to_json())
    assert "The clip norm adapts." in said


@pytest.mark.parametrize(
    "options", [{"precondition": "update"}, {"release_preconditioner": "delayed"}], ids=str
)
def test_what_does_not_fit_is_refused(tiny_corpus, options):
    given = {"precondition": "none", **options}
    with pytest.raises(ValueError):
        build(load_experiment("adadps-tags").with_options({**OPTIONS, **given}), tiny_corpus)
