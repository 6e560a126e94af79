"""A clip norm that adapts: the vector users send, the count, the step, and what it costs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import AdaptiveClip, Rounded
from fedpriv.mechanisms.bounds import WITHIN
from fedpriv.mechanisms.preconditioners import Preconditioning
from fedpriv.optimizers import Sgd
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.training.algorithm import Context
from fedpriv.training.federated_averaging import CLIP_NORM, FederatedAveraging
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    Given,
    answered,
    assert_near,
    assert_same,
    bounded,
    contributed,
)

PARAMS = {"w": np.zeros((4, 2), np.float32), "b": np.zeros(3, np.float32)}
CLIPPING = AdaptiveClip(l2_clip_norm=3.0, least=1e-3, most=1e3)


def update(norm, seed=0):
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal(a.shape) for name, a in PARAMS.items()}
    scale = norm / tree.l2_norm(made)
    return {name: (scale * a).astype(np.float32) for name, a in made.items()}


@pytest.mark.parametrize("grid", [False, True], ids=["floats", "grid"])
def test_a_users_vector_is_no_longer_than_one(subtests, grid):
    for clip_norm in [1e-3, 0.7, 1.0, 50.0]:
        for norm in [0.0, 1e-20, 0.5, 0.7, 1.0, 3.0, 1e4, 1e30]:
            for weight in [0.05, 0.2, 0.9]:
                with subtests.test(clip_norm=clip_norm, norm=norm, weight=weight):
                    clip = replace(CLIPPING, count_weight=weight)
                    own = update(norm) if norm else PARAMS
                    bound = Rounded(bound=clip) if grid else clip
                    sent = bounded(bound, own, Context(clip_norm=clip_norm))
                    assert tree.l2_norm(sent) <= 1
                    below = tree.l2_norm(own) <= clip_norm
                    assert sent.pop(WITHIN)[0] == pytest.approx(weight if below else -weight)
                    length = math.sqrt(1 - weight**2) * min(1, norm / clip_norm)
                    rounding = CLIPPING.l2_bound * 2.0**-22 if grid else 0.0
                    assert tree.l2_norm(sent) == pytest.approx(length, rel=1e-5, abs=rounding)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_whoever_is_not_finite_is_on_neither_side(odd):
    users = {"a": update(1.0), "b": {**update(1.0), "b": np.full(3, odd, np.float32)}}
    context = Context(clip_norm=2.0)
    found = contributed(Given(), PARAMS, users, bound=CLIPPING, context=context)
    alone = contributed(Given(), PARAMS, users, ["a"], bound=CLIPPING, context=context)
    assert (found.num_failed, alone.num_failed) == (1, 0)
    assert_same(found.total, alone.total)


def test_it_counts_updates_as_they_are_bounded():
    """A preconditioner comes first: the norm that is compared with C is that of Δ/A."""
    own, halves = update(1.5), {n: np.full(a.shape, 0.5, np.float32) for n, a in PARAMS.items()}
    context = Context(clip_norm=1.0, multiplier=halves)
    assert_near(
        bounded(CLIPPING, own, context), bounded(CLIPPING, update(0.75), Context(clip_norm=1.0))
    )
    assert (
        bounded(CLIPPING, own, context)[WITHIN]
        > 0
        > bounded(CLIPPING, own, Context(clip_norm=1.0))[WITHIN]
    )


def test_without_a_clip_norm_nothing_is_bounded():
    with refuses(ValueError, "clip norm"):
        answered(Given(), params=PARAMS, bound=CLIPPING, user_ids=[], data={})


def averaging(clip=CLIPPING):
    return FederatedAveraging(optimizer=Sgd(), bound=clip)


def released(clip, clip_norm, norms, cohort, noise=0.0):
    """The mean that a mechanism releases of users with updates of these norms."""
    users = {f"u{n}": update(norm, seed=n) for n, norm in enumerate(norms)}
    total = contributed(
        Given(), PARAMS, users, bound=clip, context=Context(clip_norm=clip_norm)
    ).real()
    mean = {n: (np.asarray(a) / cohort).astype(np.float32) for n, a in total.items()}
    mean[WITHIN] = mean[WITHIN] + np.float32(noise)
    expected = {n: np.zeros(a.shape) for n, a in PARAMS.items()}
    for one, norm in zip(users.values(), norms, strict=True):
        for n, a in one.items():
            expected[n] += a * min(1.0, clip_norm / norm) / cohort
    return mean, expected


@pytest.mark.parametrize("weight", [0.2, 0.7])
@pytest.mark.parametrize("noise", [0.0, 0.03, -0.5])
def test_the_step_has_the_updates_units_and_the_clip_norm_follows_the_noisy_share(weight, noise):
    """Of a cohort of 8, 5 replied: the share is of the cohort, an absent user counts as half."""
    clip = replace(CLIPPING, count_weight=weight, quantile=0.6, rate=0.3)
    algorithm, norms = averaging(clip), [0.5, 1.0, 2.0, 8.0, 20.0]
    state = algorithm.init(PARAMS)
    assert state.numbers[CLIP_NORM] == algorithm.request(state).context.clip_norm == 3.0
    mean, expected = released(clip, 3.0, norms, 8, noise)
    after = algorithm.next(state, mean)
    assert_near(after.params, expected, rtol=1e-5)
    assert after.numbers["update_norm"] == pytest.approx(tree.l2_norm(expected), rel=1e-5)
    share = 0.5 + ((3 - 2) / 8 + noise / weight) / 2
    assert after.numbers[CLIP_NORM] == pytest.approx(3.0 * math.exp(-0.3 * (share - 0.6)), rel=1e-6)
    assert algorithm.request(after).context.clip_norm == after.numbers[CLIP_NORM]


@pytest.mark.parametrize(("count", "limit"), [(1e9, 2.0), (-1e9, 5.0)])
def test_the_clip_norm_stays_within_its_limits(count, limit):
    algorithm = averaging(replace(CLIPPING, least=2.0, most=5.0))
    mean = {**update(1.0), WITHIN: np.array([count], np.float32)}
    after = algorithm.next(algorithm.init(PARAMS), mean)
    assert after.numbers[CLIP_NORM] == limit


def test_a_public_inverse_comes_after_the_updates_own_units():
    algorithm = averaging()
    mean, expected = released(CLIPPING, 3.0, [0.5, 8.0], 2)
    doubled = Preconditioning(
        inverse={n: np.full(a.shape, 2, np.float32) for n, a in PARAMS.items()}
    )
    after = algorithm.next(algorithm.init(PARAMS), mean, doubled)
    assert_near(after.params, {n: 2 * a for n, a in expected.items()}, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"l2_clip_norm": 2e3}, "bound.most"),
        ({"least": 0.0}, "least"),
        ({"most": math.inf}, "most"),
        ({"least": 4.0}, "bound.least"),
    ],
    ids=str,
)
def test_limits_that_do_not_hold_it_are_refused(wrong, named):
    with refuses(ValueError, named):
        replace(CLIPPING, **wrong)


OPTIONS = {
    "bound": "adaptive",
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
    (whole, facts), (again, same) = (
        read_tensors(tmp_path / run / "state.safetensors") for run in ("whole", "broken")
    )
    assert_same(again, whole)
    assert float(facts[CLIP_NORM]) == float(same[CLIP_NORM]) != OPTIONS["l2-clip-norm"]
    said = str(run_statement(tmp_path / "whole").to_json())
    assert "The clip norm adapts." in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"precondition": "update"}, {"release_preconditioner": "delayed", "delay-plain": 1}],
    ids=str,
)
def test_what_is_preconditioned_is_clipped_at_it_too(tiny_corpus, tmp_path, options):
    given = {**OPTIONS, "precondition": "none", "rounds": 2, **options}
    made = load_experiment("adadps-tags").with_options(given)
    assert start_run(made, "adadps-tags", tiny_corpus, tmp_path / "run").run()["rounds"] == 2


def test_noise_of_a_whole_run_is_refused():
    plan = SimpleNamespace(planned_rounds=6, charged_once=True)
    with refuses(ValueError, "bound", "adaptive"):
        averaging().check_plan(plan)
    averaging(None).check_plan(plan)
    averaging().check_plan(SimpleNamespace(planned_rounds=6, charged_once=False))
